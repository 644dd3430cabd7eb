{{- /*
relayq.name (root, suffix, limit = 63): "<release>-<suffix>" as an RFC 1035 label, at most `limit` long.
Where the first part must be changed or cut it gets 8 hex digits of its SHA-256, so that two releases never share a
name; the suffix is never cut.
*/ -}}
{{- define "relayq.name" -}}
{{- $given := .root.Values.fullnameOverride | default .root.Release.Name -}}
{{- $room := sub (int (.limit | default 63)) (add (len .suffix) 1) | int -}}
{{- $clean := regexReplaceAll "[^a-z0-9-]+" (lower $given) "-" | trimAll "-" -}}
{{- if not (regexMatch "^[a-z]" $clean) -}}
{{- $clean = printf "r-%s" $clean | trimSuffix "-" -}}
{{- end -}}
{{- if or (ne $clean $given) (gt (len $clean) $room) -}}
{{- $clean = printf "%s-%s" (trunc (int (sub $room 9)) $clean | trimSuffix "-") (sha256sum $given | trunc 8) -}}
{{- end -}}
{{- printf "%s-%s" $clean .suffix -}}
{{- end -}}

{{- /* relayq.slug: what queuecore.names.kubernetes_name makes of a model's name (a test compares the two). */ -}}
{{- define "relayq.slug" -}}
{{- $slug := regexReplaceAll "[^a-z0-9]+" (lower .) "-" | trimAll "-" | trunc 29 | trimAll "-" -}}
{{- if $slug -}}
{{- printf "m-%s-%s" $slug (sha256sum . | trunc 8) -}}
{{- else -}}
{{- printf "m-%s" (sha256sum . | trunc 8) -}}
{{- end -}}
{{- end -}}

{{- /* relayq.relayName (root, model): 57 at most, so that the Job "<name>-xxxxx" is not cut. */ -}}
{{- define "relayq.relayName" -}}
{{- include "relayq.name" (dict "root" .root "suffix" (printf "relay-%s" (include "relayq.slug" .model)) "limit" 57) -}}
{{- end -}}

{{- /* relayq.valkeyName (root): 52 at most, so that a StatefulSet's pods can carry it and a hash in a label. */ -}}
{{- define "relayq.valkeyName" -}}
{{- include "relayq.name" (dict "root" . "suffix" "valkey" "limit" 52) -}}
{{- end -}}

{{- /* relayq.selectorLabels (root, component, model?): what a selector uses; never changes between releases of the chart. */ -}}
{{- define "relayq.selectorLabels" -}}
app.kubernetes.io/name: relayq
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- with .model }}
relayq/model: {{ include "relayq.slug" . }}
{{- end }}
{{- end -}}

{{- define "relayq.labels" -}}
{{ include "relayq.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* relayq.serviceAccountName (root, component) */ -}}
{{- define "relayq.serviceAccountName" -}}
{{- $account := (index .root.Values .component).serviceAccount | default dict -}}
{{- $account.name | default (include "relayq.name" (dict "root" .root "suffix" .component)) -}}
{{- end -}}

{{- /* relayq.image (root, repository): registry/repository:tag */ -}}
{{- define "relayq.image" -}}
{{- $image := .root.Values.image -}}
{{- with $image.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- .repository }}:{{ $image.tag | default .root.Chart.AppVersion -}}
{{- end -}}

{{- /* relayq.number: a number as text, whole: 10737418240 and not 1.073741824e+10, 0 and not the default. */ -}}
{{- define "relayq.number" -}}
{{- . | toJson -}}
{{- end -}}
