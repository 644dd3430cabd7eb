{{- define "relayq.gatewayEnv" -}}
{{- $gateway := .Values.gateway -}}
{{ include "relayq.commonEnv" (dict "root" . "component" "gateway") }}
- {name: GATEWAY_HOST, value: 0.0.0.0}
- {name: GATEWAY_PORT, value: "8080"}
- {name: GATEWAY_METRICS_HOST, value: 0.0.0.0}
- {name: GATEWAY_METRICS_PORT, value: "9101"}
{{- if $gateway.admin.tokenSecret }}
- {name: GATEWAY_ADMIN_HOST, value: 0.0.0.0}
- {name: GATEWAY_ADMIN_TOKEN_FILE, value: /etc/relayq/admin/token}
{{- else }}
- {name: GATEWAY_ADMIN_HOST, value: 127.0.0.1} # kubectl port-forward reaches it; nobody else does
{{- end }}
- {name: GATEWAY_ADMIN_PORT, value: "8081"}
- {name: GATEWAY_AUTH, value: {{ $gateway.auth | quote }}}
{{- if eq $gateway.auth "none" }}
- {name: GATEWAY_ALLOW_ANONYMOUS, value: {{ $gateway.allowAnonymous | quote }}}
{{- end }}
{{- if eq $gateway.auth "header" }}
- {name: GATEWAY_TENANT_HEADER, value: {{ $gateway.tenantHeader | quote }}}
{{- end }}
{{- if $gateway.apiKeys.existingSecret }}
- {name: GATEWAY_API_KEYS_FILE, value: /etc/relayq/api-keys/keys}
{{- end }}
{{- if $gateway.webhooks.secretsSecret }}
- {name: GATEWAY_WEBHOOK_SECRETS_FILE, value: /etc/relayq/webhooks/secrets}
{{- end }}
{{- with $gateway.webhooks.allow }}
- {name: GATEWAY_WEBHOOK_ALLOW, value: {{ . | quote }}}
{{- end }}
{{- with $gateway.priorityHeader }}
- {name: GATEWAY_PRIORITY_HEADER, value: {{ . | quote }}}
{{- end }}
- {name: GATEWAY_MAX_UPLOAD_BYTES, value: {{ include "relayq.number" $gateway.maxUploadBytes | quote }}}
- {name: GATEWAY_DRAIN_SECONDS, value: {{ include "relayq.number" $gateway.drainSeconds | quote }}}
- {name: GATEWAY_ACCEPT_SEED_COMPLETIONS, value: {{ $gateway.acceptSeedCompletions | quote }}}
{{- end -}}
