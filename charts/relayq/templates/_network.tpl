{{- /* relayq.portOf (url, default): the port a URL names, else what its scheme means. */ -}}
{{- define "relayq.portOf" -}}
{{- $parts := urlParse .url -}}
{{- regexFind ":[0-9]+$" $parts.host | trimPrefix ":" | default (ternary "80" "443" (eq $parts.scheme "http")) -}}
{{- end -}}

{{- /* relayq.peers (key: to | from, peers, ports): one rule; no peers = any address. */ -}}
{{- define "relayq.rule" -}}
- ports:
    {{- range .ports }}
    - {port: {{ int . }}, protocol: TCP}
    {{- end }}
  {{- with .peers }}
  {{ $.key }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- /* relayq.egress (root, component): name servers, Redis, the blob store, traces; the arrows that every service has. */ -}}
{{- define "relayq.egress" -}}
{{- $values := .root.Values -}}
{{- $policy := $values.networkPolicy -}}
- ports:
    {{- range $policy.dns.ports }}
    - {port: {{ int . }}, protocol: UDP}
    - {port: {{ int . }}, protocol: TCP}
    {{- end }}
  {{- with $policy.dns.to }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- $redis := include "relayq.redis" .root | fromJson }}
{{- if $values.valkey.enabled }}
{{- $valkey := dict "podSelector" (dict "matchLabels" (include "relayq.selectorLabels" (dict "root" .root "component" "valkey") | fromYaml)) }}
{{ include "relayq.rule" (dict "key" "to" "peers" (list $valkey) "ports" (list 6379)) }}
{{- else }}
{{ include "relayq.rule" (dict "key" "to" "peers" $policy.redis.to "ports" ($policy.redis.ports | default (list $redis.port))) }}
{{- end }}
{{- if $values.blobs.url }}
{{- $port := include "relayq.portOf" (dict "url" (dig "s3" "endpointUrl" "" $values.blobs)) }}
{{ include "relayq.rule" (dict "key" "to" "peers" $policy.blobs.to "ports" ($policy.blobs.ports | default (list $port))) }}
{{- end }}
{{- with $values.tracing.otlpEndpoint }}
{{ include "relayq.rule" (dict "key" "to" "ports" (list (include "relayq.portOf" (dict "url" .)))) }}
{{- end }}
{{- if and (eq .component "gateway") $policy.webhooks.ports }}
{{ include "relayq.rule" (dict "key" "to" "peers" $policy.webhooks.to "ports" $policy.webhooks.ports) }}
{{- end }}
{{- with get $policy.extraEgress .component }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* relayq.networkPolicy (root, component, port, ingress: YAML): one component's policy. */ -}}
{{- define "relayq.networkPolicy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "relayq.name" (dict "root" .root "suffix" .component) }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "relayq.labels" (pick . "root" "component") | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "relayq.selectorLabels" (pick . "root" "component") | nindent 6 }}
  policyTypes: [Ingress, Egress]
  {{- $metrics := "" }}
  {{- if .root.Values.metrics.monitors.enabled }}
  {{- $metrics = include "relayq.rule" (dict "key" "from" "peers" .root.Values.networkPolicy.metricsFrom "ports" (list .port)) }}
  {{- end }}
  {{- if or .ingress $metrics }}
  ingress:
    {{- with .ingress }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with $metrics }}
    {{- . | nindent 4 }}
    {{- end }}
  {{- else }}
  ingress: []
  {{- end }}
  egress:
    {{- include "relayq.egress" . | nindent 4 }}
{{- end -}}
