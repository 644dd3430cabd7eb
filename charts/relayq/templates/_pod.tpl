{{- /* relayq.commonEnv (root, component) -> YAML list: what every service reads. */ -}}
{{- define "relayq.commonEnv" -}}
{{- $values := .root.Values -}}
{{- $redis := include "relayq.redis" .root | fromJson }}
- {name: REDIS_URL, value: {{ $redis.url | quote }}}
{{- include "relayq.redisAuthEnv" . }}
{{- $blobs := $values.blobs | default dict }}
- {name: BLOBS_URL, value: {{ $blobs.url | default "file:///var/lib/relayq/blobs" | quote }}}
{{- if $blobs.url }}
{{- $s3 := $blobs.s3 | default dict }}
{{- with $s3.endpointUrl }}
- {name: S3_ENDPOINT_URL, value: {{ . | quote }}}
{{- end }}
{{- with $s3.addressingStyle }}
- {name: S3_ADDRESSING_STYLE, value: {{ . | quote }}}
{{- end }}
{{- with $s3.checksums }}
- {name: S3_CHECKSUMS, value: {{ . | quote }}}
{{- end }}
{{- with $s3.region }}
- {name: AWS_REGION, value: {{ . | quote }}}
- {name: AWS_DEFAULT_REGION, value: {{ . | quote }}}
{{- end }}
{{- $auth := $s3.auth | default dict }}
{{- if or $auth.existingSecret $auth.accessKeyId }}
{{- $secret := $auth.existingSecret | default (include "relayq.name" (dict "root" .root "suffix" "blobs")) }}
{{- $ours := not $auth.existingSecret }}
{{- $id := $ours | ternary "" $auth.existingSecretAccessKeyIdKey | default "AWS_ACCESS_KEY_ID" }}
{{- $key := $ours | ternary "" $auth.existingSecretSecretAccessKeyKey | default "AWS_SECRET_ACCESS_KEY" }}
- name: AWS_ACCESS_KEY_ID
  valueFrom: {secretKeyRef: {name: {{ $secret | quote }}, key: {{ $id | quote }}}}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ $secret | quote }}, key: {{ $key | quote }}}}
{{- end }}
{{- end }}
{{- if include "relayq.encryptionSecret" .root }}
- {name: ENCRYPTION_KEYS_FILE, value: /etc/relayq/encryption/keys}
{{- end }}
- {name: MODELS_FILE, value: /etc/relayq/models/models.yaml}
- {name: LOG_LEVEL, value: {{ $values.log.level | quote }}}
- {name: LOG_FORMAT, value: {{ $values.log.format | quote }}}
{{- with $values.tracing.otlpEndpoint }}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ . | quote }}}
{{- end }}
- {name: RESULT_TTL_SECONDS, value: {{ include "relayq.number" $values.retention.resultTtlSeconds | quote }}}
- {name: DEADLETTER_TTL_SECONDS, value: {{ include "relayq.number" $values.retention.deadletterTtlSeconds | quote }}}
- {name: TOMBSTONE_TTL_SECONDS, value: {{ include "relayq.number" $values.retention.tombstoneTtlSeconds | quote }}}
- {name: PENDING_MAX_AGE_SECONDS, value: {{ include "relayq.number" $values.retention.pendingMaxAgeSeconds | quote }}}
- {name: MAX_REAP_ATTEMPTS, value: {{ include "relayq.number" $values.lifecycle.gc.maxReapAttempts | quote }}}
- {name: CLAIM_LEASE_TTL_SECONDS, value: {{ include "relayq.number" $values.claims.leaseTtlSeconds | quote }}}
- {name: CLAIM_RECLAIM_INTERVAL_MS, value: {{ include "relayq.number" $values.claims.reclaimIntervalMs | quote }}}
- {name: RESULT_DEDUP_TTL_SECONDS, value: {{ include "relayq.number" $values.claims.resultDedupTtlSeconds | quote }}}
{{- end -}}

{{- /*
relayq.env (own: YAML list, extra: list, where) -> YAML list. A variable given twice is refused: Kubernetes would take
the last one in silence, and what the chart sets belongs together.
*/ -}}
{{- define "relayq.env" -}}
{{- $own := fromYamlArray .own -}}
{{- $names := list -}}
{{- range $own -}}{{- $names = append $names .name -}}{{- end -}}
{{- range .extra -}}
{{- if has .name $names -}}
{{- fail (printf "%s: %s is set by the chart; change the value that it comes from" $.where .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- with concat $own (.extra | default list) -}}{{- toYaml . -}}{{- end -}}
{{- end -}}

{{- /* relayq.encryptionSecret: JSON {name, key} of the Secret with the encryption keys, or nothing. */ -}}
{{- define "relayq.encryptionSecret" -}}
{{- $encryption := .Values.encryption | default dict -}}
{{- if $encryption.existingSecret -}}
{{- dict "name" $encryption.existingSecret "key" ($encryption.existingSecretKey | default "keys") | toJson -}}
{{- else if $encryption.keys -}}
{{- dict "name" (include "relayq.name" (dict "root" . "suffix" "encryption")) "key" "keys" | toJson -}}
{{- end -}}
{{- end -}}

{{- /* relayq.volumes and relayq.volumeMounts (root): what every service mounts. */ -}}
{{- define "relayq.volumes" -}}
- name: tmp
  emptyDir: {sizeLimit: {{ .Values.tmpSizeLimit | default "2Gi" }}}
- name: models
  configMap: {name: {{ include "relayq.name" (dict "root" . "suffix" "models") }}}
{{- if not (.Values.blobs | default dict).url }}
{{- $volume := .Values.blobs.volume | default dict }}
- name: blobs
  persistentVolumeClaim: {claimName: {{ $volume.existingClaim | default (include "relayq.name" (dict "root" . "suffix" "blobs")) | quote }}}
{{- end }}
{{- with include "relayq.encryptionSecret" . }}
{{- $secret := fromJson . }}
- name: encryption
  secret: {secretName: {{ $secret.name | quote }}, items: [{key: {{ $secret.key | quote }}, path: keys}]}
{{- end }}
{{- with (include "relayq.redis" . | fromJson).caSecret }}
- name: redis-ca
  secret: {secretName: {{ . | quote }}, items: [{key: {{ $.Values.redis.tls.caKey | default "ca.crt" | quote }}, path: ca.crt}]}
{{- end }}
{{- end -}}

{{- define "relayq.volumeMounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: models, mountPath: /etc/relayq/models, readOnly: true}
{{- if not (.Values.blobs | default dict).url }}
- {name: blobs, mountPath: /var/lib/relayq}
{{- end }}
{{- if include "relayq.encryptionSecret" . }}
- {name: encryption, mountPath: /etc/relayq/encryption, readOnly: true}
{{- end }}
{{- if (include "relayq.redis" . | fromJson).caSecret }}
- {name: redis-ca, mountPath: /etc/relayq/redis-ca, readOnly: true}
{{- end }}
{{- end -}}

{{- /*
relayq.checksums (root, component): change with what the pod reads at its start, so that an upgrade replaces the pods
that must read it again. Secrets of the user are not ours to read: after changing one, restart by hand.
*/ -}}
{{- define "relayq.checksums" -}}
{{- $redis := .root.Values.redis | default dict -}}
{{- $secrets := list ($redis.auth | default dict) (get ($redis.users | default dict) .component)
    (dig "s3" "auth" dict (.root.Values.blobs | default dict)) (.root.Values.encryption | default dict) -}}
checksum/models: {{ include "relayq.modelsFile" .root | sha256sum }}
checksum/secrets: {{ $secrets | toJson | sha256sum }}
{{- end -}}

{{- /* relayq.podFrame (root, component, accountName): what every pod has. */ -}}
{{- define "relayq.podFrame" -}}
serviceAccountName: {{ .accountName | quote }}
automountServiceAccountToken: false # nothing of relayq asks the API server
enableServiceLinks: false # a Service named gateway would set GATEWAY_PORT=tcp://... in every pod of the namespace
{{- with .root.Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {name: {{ . | quote }}}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* relayq.placement (selectorLabels, nodeSelector, tolerations, affinity, topologySpreadConstraints, priorityClassName, runtimeClassName) */ -}}
{{- define "relayq.placement" -}}
{{- $out := dict -}}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "priorityClassName" "runtimeClassName" -}}
{{- with get $ $key -}}{{- $_ := set $out $key . -}}{{- end -}}
{{- end -}}
{{- $spread := list -}}
{{- range .topologySpreadConstraints -}}
{{- $own := dict "labelSelector" (dict "matchLabels" (fromYaml $.selectorLabels)) -}}
{{- $spread = append $spread (hasKey . "labelSelector" | ternary . (merge $own .)) -}}
{{- end -}}
{{- with $spread -}}{{- $_ := set $out "topologySpreadConstraints" . -}}{{- end -}}
{{- if $out -}}{{- toYaml $out -}}{{- end -}}
{{- end -}}

{{- /*
relayq.probes: liveness follows the service's loop, readiness what it depends on (not the process). Readiness is given half
a minute: Redis and the store are the same for all pods, so a moment's slowness would take the last gateway out of its
Service, and clients would be refused a connection instead of being answered 503 with Retry-After.
*/ -}}
{{- define "relayq.probes" -}}
livenessProbe:
  httpGet: {path: /health/live, port: metrics}
  initialDelaySeconds: 10
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /health/ready, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 6
{{- end -}}
