{{- /*
relayq.redis (root) -> JSON {url, address, database, tls}: where Redis is. The address is KEDA's, which runs in another
namespace, so a bare Service name gets ours.
*/ -}}
{{- define "relayq.redis" -}}
{{- $redis := .Values.redis | default dict -}}
{{- $url := $redis.url | default "" -}}
{{- if .Values.valkey.enabled -}}
{{- $url = printf "redis://%s.%s.svc:6379/0" (include "relayq.valkeyName" .) .Release.Namespace -}}
{{- end -}}
{{- $parts := urlParse $url -}}
{{- $host := $parts.hostname -}}
{{- $port := regexFind ":[0-9]+$" $parts.host | trimPrefix ":" | default "6379" -}}
{{- if contains ":" $host -}}
{{- $host = printf "[%s]" $host -}}
{{- else if not (contains "." $host) -}}
{{- $host = printf "%s.%s.svc" $host .Release.Namespace -}}
{{- end -}}
{{- $tls := eq $parts.scheme "rediss" -}}
{{- $ca := and $tls (dig "tls" "caSecret" "" $redis) -}}
{{- if $ca -}}
{{- $url = printf "%s%sssl_ca_certs=/etc/relayq/redis-ca/ca.crt" $url (ternary "&" "?" (contains "?" $url)) -}}
{{- end -}}
{{- dict "url" $url "address" (printf "%s:%s" $host $port) "port" (int $port) "tls" $tls
    "database" (trimPrefix "/" $parts.path | default "0") "caSecret" ($ca | default "") | toJson -}}
{{- end -}}

{{- /*
relayq.redisAuth (root, component) -> JSON {username?: {name, key}, password?: {name, key}}: the Secrets that hold the
component's credentials. Services and KEDA read the same Secret, so there is one place to change.
*/ -}}
{{- define "relayq.redisAuth" -}}
{{- $redis := .root.Values.redis | default dict -}}
{{- $own := get ($redis.users | default dict) .component -}}
{{- $auth := $own | default $redis.auth | default dict -}}
{{- $prefix := empty $own | ternary "" (printf "%s-" .component) -}}
{{- $ours := include "relayq.name" (dict "root" .root "suffix" "redis") -}}
{{- $out := dict -}}
{{- if $auth.existingSecret -}}
{{- $_ := set $out "password" (dict "name" $auth.existingSecret "key" ($auth.existingSecretPasswordKey | default "password")) -}}
{{- else if or $auth.password .root.Values.valkey.enabled -}}
{{- $_ := set $out "password" (dict "name" $ours "key" (printf "%spassword" $prefix)) -}}
{{- end -}}
{{- if and $auth.existingSecret $auth.existingSecretUsernameKey -}}
{{- $_ := set $out "username" (dict "name" $auth.existingSecret "key" $auth.existingSecretUsernameKey) -}}
{{- else if $auth.username -}}
{{- $_ := set $out "username" (dict "name" $ours "key" (printf "%susername" $prefix)) -}}
{{- end -}}
{{- $out | toJson -}}
{{- end -}}

{{- /* relayq.redisAuthEnv (root, component): REDIS_USERNAME and REDIS_PASSWORD, apart from the URL, any characters. */ -}}
{{- define "relayq.redisAuthEnv" -}}
{{- $auth := include "relayq.redisAuth" . | fromJson -}}
{{- range $field, $variable := dict "username" "REDIS_USERNAME" "password" "REDIS_PASSWORD" }}
{{- with get $auth $field }}
- name: {{ $variable }}
  valueFrom: {secretKeyRef: {name: {{ .name | quote }}, key: {{ .key | quote }}}}
{{- end }}
{{- end }}
{{- end -}}
