{{- /* Each refusal names the value and the rule. Rules of models.yaml itself that need two values are the services' too
(queuecore.config): said here, before pods crash on them. A test holds the two together. */ -}}
{{- define "relayq.validate" -}}
{{- include "relayq.validateRedis" . -}}
{{- include "relayq.validateSecrets" . -}}
{{- include "relayq.validateModels" . -}}
{{- include "relayq.validateGateway" . -}}
{{- end -}}

{{- define "relayq.validateRedis" -}}
{{- $redis := .Values.redis | default dict -}}
{{- $url := $redis.url | default "" -}}
{{- if and $url .Values.valkey.enabled -}}
{{- fail "valkey.enabled and redis.url: set one of them; the bundled Valkey has its own address" -}}
{{- end -}}
{{- if not (or $url .Values.valkey.enabled) -}}
{{- fail "redis.url is required (redis://host:port/db, or rediss:// for TLS), or valkey.enabled=true for a trial" -}}
{{- end -}}
{{- if $url -}}
{{- if regexMatch "^redis\\+(cluster|sentinel)://" $url -}}
{{- fail "redis.url: Redis Cluster and Sentinel are not supported yet; give one server, redis:// or rediss://" -}}
{{- end -}}
{{- if regexMatch "^[a-z+]+://[^/?#]*@" $url -}}
{{- fail "redis.url: no user or password here; they go to redis.auth.username and redis.auth.password (any characters), or to redis.auth.existingSecret" -}}
{{- end -}}
{{- if not (regexMatch "^rediss?://([A-Za-z0-9._-]+|\\[[0-9A-Fa-f:.]+\\])(:[0-9]{1,5})?(/[0-9]*)?(\\?[^#]*)?$" $url) -}}
{{- fail (printf "redis.url: %q is not redis://host:port/db or rediss://host:port/db" $url) -}}
{{- end -}}
{{- end -}}
{{- if and (dig "tls" "caSecret" "" $redis) (not (hasPrefix "rediss://" $url)) -}}
{{- fail "redis.tls.caSecret: only a rediss:// redis.url has a certificate to check" -}}
{{- end -}}
{{- if and $redis.users .Values.valkey.enabled -}}
{{- fail "redis.users: the bundled Valkey has one user, that of redis.auth" -}}
{{- end -}}
{{- if .Values.valkey.enabled -}}
{{- if not (regexMatch "^[A-Za-z0-9._-]*$" (dig "auth" "username" "" $redis)) -}}
{{- fail "redis.auth.username: letters, digits, '.', '_' and '-' where the bundled Valkey makes the user" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "relayq.validateSecrets" -}}
{{- $redis := .Values.redis | default dict -}}
{{- $credentials := dict "redis.auth" ($redis.auth | default dict) -}}
{{- range $component, $auth := $redis.users -}}
{{- $_ := set $credentials (printf "redis.users.%s" $component) ($auth | default dict) -}}
{{- end -}}
{{- range $where, $auth := $credentials -}}
{{- if and $auth.password $auth.existingSecret -}}
{{- fail (printf "%s: password and existingSecret: set one of them" $where) -}}
{{- end -}}
{{- end -}}
{{- $encryption := .Values.encryption | default dict -}}
{{- if and $encryption.keys $encryption.existingSecret -}}
{{- fail "encryption: keys and existingSecret: set one of them" -}}
{{- end -}}
{{- $blobs := .Values.blobs | default dict -}}
{{- if and $blobs.url (not (regexMatch "^s3://[^/]+" $blobs.url)) -}}
{{- fail "blobs.url: s3://bucket/prefix; for a volume instead leave it empty and see blobs.volume" -}}
{{- end -}}
{{- $auth := dig "s3" "auth" dict $blobs -}}
{{- if and $auth.existingSecret (or $auth.accessKeyId $auth.secretAccessKey) -}}
{{- fail "blobs.s3.auth: accessKeyId and secretAccessKey, or existingSecret: set one of them" -}}
{{- end -}}
{{- if ne (empty $auth.accessKeyId) (empty $auth.secretAccessKey) -}}
{{- fail "blobs.s3.auth: accessKeyId and secretAccessKey belong together" -}}
{{- end -}}
{{- end -}}

{{- define "relayq.validateModels" -}}
{{- $models := include "relayq.models" . | fromJson -}}
{{- if not $models -}}
{{- fail "models: at least one model is needed" -}}
{{- end -}}
{{- $slugs := dict -}}
{{- $defaults := dict -}}
{{- range $name, $model := $models -}}
{{- include "relayq.validateModelName" $name -}}
{{- $slug := include "relayq.slug" $name -}}
{{- if hasKey $slugs $slug -}}
{{- fail (printf "models: %q and %q would share the Kubernetes name %s" (get $slugs $slug) $name $slug) -}}
{{- end -}}
{{- $_ := set $slugs $slug $name -}}
{{- $where := printf "models.%s" $name -}}
{{- include "relayq.validateScaling" (dict "root" $ "name" $name "model" $model "where" $where) -}}
{{- if and $model.order (ne ($model.transport | default "list") "sortedset") -}}
{{- fail (printf "%s.order: only transport sortedset has an order" $where) -}}
{{- end -}}
{{- if and (hasKey $model "lease_seconds") (hasKey $model "claim_lease_ttl_seconds") -}}
{{- fail (printf "%s: lease_seconds and claim_lease_ttl_seconds mean the same; set one" $where) -}}
{{- end -}}
{{- if and $model.provider (not (hasKey ($.Values.providers | default dict) $model.provider)) -}}
{{- fail (printf "%s.provider: %q is not under providers" $where $model.provider) -}}
{{- end -}}
{{- if $model.default -}}
{{- if hasKey $defaults $model.service_type -}}
{{- fail (printf "%s.default: %s is the default of %s already" $where (get $defaults $model.service_type) $model.service_type) -}}
{{- end -}}
{{- $_ := set $defaults $model.service_type $name -}}
{{- end -}}
{{- end -}}
{{- range $pipeline, $config := .Values.pipelines -}}
{{- range $stage := $config.stages -}}
{{- if not (hasKey $models $stage) -}}
{{- fail (printf "pipelines.%s.stages: %q is not under models" $pipeline $stage) -}}
{{- end -}}
{{- if hasKey (get $models $stage) "transport" -}}
{{- fail (printf "models.%s.transport: a stage of a pipeline (%s) has a layout of its own; leave it out" $stage $pipeline) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The rules of queuecore.names.check_model_name. */ -}}
{{- define "relayq.validateModelName" -}}
{{- if not (regexMatch "^[A-Za-z0-9]([A-Za-z0-9._:/-]{0,198}[A-Za-z0-9])?$" .) -}}
{{- fail (printf "models: model name %q: 1 to 200 characters of A-Z a-z 0-9 . _ : / -, first and last a letter or digit" .) -}}
{{- end -}}
{{- range $part := splitList "/" . -}}
{{- if has $part (list "" "." "..") -}}
{{- fail (printf "models: model name %q: no empty, '.' or '..' part between slashes" $) -}}
{{- end -}}
{{- end -}}
{{- $reserved := splitList " " "pending processing lease first-seen missing delayed paused ordered ordering deadletter outbox jobs deadlines state waiting cancel completed changed stream dead high claimed claim-owners claims-idx bell gate" -}}
{{- range $part := rest (splitList ":" .) -}}
{{- if has $part $reserved -}}
{{- fail (printf "models: model name %q: a part after ':' may not be a word of the Redis key layout" $) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "relayq.validateScaling" -}}
{{- $values := .root.Values -}}
{{- $where := printf "%s.scaling" .where -}}
{{- $own := .model.scaling | default dict -}}
{{- $scaling := include "relayq.settings" (dict "root" .root "model" .model "section" "scaling") | fromJson -}}
{{- if gt (int64 $scaling.min) (int64 $scaling.max) -}}
{{- fail (printf "%s: min %d is above max %d" $where (int64 $scaling.min) (int64 $scaling.max)) -}}
{{- end -}}
{{- $plan := include "relayq.plan" . | fromJson -}}
{{- if eq $scaling.kind "ScaledJob" -}}
{{- if not $values.keda.enabled -}}
{{- fail (printf "%s.kind: ScaledJob needs KEDA; with keda.enabled=false use ScaledObject (a Deployment of `min` relays)" $where) -}}
{{- end -}}
{{- if hasKey $own "cooldownSeconds" -}}
{{- fail (printf "%s.cooldownSeconds: a ScaledJob has no cool-down, each Job ends by itself; use ScaledObject or leave it out" $where) -}}
{{- end -}}
{{- if ne (int64 $scaling.maxJobs) 1 -}}
{{- fail (printf "%s.maxJobs: must be 1 with ScaledJob: KEDA counts one Job for each queued job; use ScaledObject to keep a relay for several" $where) -}}
{{- end -}}
{{- if gt (int64 $scaling.min) 0 -}}
{{- fail (printf "%s.min: must be 0 with ScaledJob: a relay exits when the queue is empty, so KEDA would start one after another; use ScaledObject to keep relays ready" $where) -}}
{{- end -}}
{{- $needed := add $plan.leaseSeconds $plan.reapSeconds -}}
{{- if lt (int64 $plan.popSeconds) $needed -}}
{{- fail (printf "relay.queuePopTimeoutSeconds: %d is too short for %s: with ScaledJob a relay must wait at least lease + reap interval = %d s, or idle Jobs follow each other while a dead relay's job waits for its lease" (int64 $plan.popSeconds) .where $needed) -}}
{{- end -}}
{{- else -}}
{{- if and (not $values.keda.enabled) (lt (int64 $scaling.min) 1) -}}
{{- fail (printf "%s.min: with keda.enabled=false it is the number of relays, so at least 1" $where) -}}
{{- end -}}
{{- end -}}
{{- if ge (int64 $plan.drainSeconds) (int64 $plan.graceSeconds) -}}
{{- fail (printf "relay.terminationGracePeriodSeconds: %d is not above the drain of %s, %d s (%s); SIGKILL would come first" (int64 $plan.graceSeconds) .where (int64 $plan.drainSeconds) (eq $scaling.kind "ScaledJob" | ternary "relay.drainSeconds" "its execution limit, because scale-in takes any pod")) -}}
{{- end -}}
{{- end -}}

{{- define "relayq.validateGateway" -}}
{{- $gateway := .Values.gateway -}}
{{- if and (eq $gateway.auth "none") (not $gateway.allowAnonymous) -}}
{{- fail "gateway.auth: none on a network lets anybody post jobs; set gateway.allowAnonymous=true if that is meant" -}}
{{- end -}}
{{- if and (eq $gateway.auth "api-key") (not $gateway.apiKeys.existingSecret) -}}
{{- fail "gateway.auth: api-key needs gateway.apiKeys.existingSecret" -}}
{{- end -}}
{{- if and $gateway.autoscaling.enabled (gt (int $gateway.autoscaling.min) (int $gateway.autoscaling.max)) -}}
{{- fail (printf "gateway.autoscaling: min %d is above max %d" (int $gateway.autoscaling.min) (int $gateway.autoscaling.max)) -}}
{{- end -}}
{{- if and $gateway.ingress.enabled (not $gateway.ingress.hosts) -}}
{{- fail "gateway.ingress.hosts: at least one host name" -}}
{{- end -}}
{{- end -}}
