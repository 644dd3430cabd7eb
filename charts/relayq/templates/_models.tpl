{{- /* relayq.models -> JSON {name: model}: the models that were given; while there are none, the trial's. */ -}}
{{- define "relayq.models" -}}
{{- $models := dict -}}
{{- range $name, $model := .Values.models -}}
{{- if not (kindIs "invalid" $model) -}}{{- $_ := set $models $name $model -}}{{- end -}}
{{- end -}}
{{- if not $models -}}
{{- range $name, $model := .Values.trialModels -}}
{{- if not (kindIs "invalid" $model) -}}{{- $_ := set $models $name $model -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $models | toJson -}}
{{- end -}}

{{- /*
relayq.settings (root, model, section) -> JSON: the model's `scaling` or `inference` over `modelDefaults`. By hasKey and
not by `default` or `merge`, which both take 0, false and "" for "not given"; null removes a key.
*/ -}}
{{- define "relayq.settings" -}}
{{- $out := dict -}}
{{- range $layer := list (.root.Values.modelDefaults | default dict) .model -}}
{{- range $key, $value := get $layer $.section | default dict -}}
{{- if kindIs "invalid" $value -}}{{- $_ := unset $out $key -}}{{- else -}}{{- $_ := set $out $key $value -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $out | toJson -}}
{{- end -}}

{{- /*
relayq.plan (root, name, model) -> JSON: what the chart decides for one model. Whole seconds.
  kind, min, max, pollingSeconds, cooldownSeconds, maxJobs   as given
  structure    list | sortedset | stream | stage: which keys hold its queue
  leaseSeconds, reapSeconds    as the services will have them
  popSeconds       how long a relay waits for a job
  executionSeconds, drainSeconds, graceSeconds, deadlineSeconds
*/ -}}
{{- define "relayq.plan" -}}
{{- $values := .root.Values -}}
{{- $plan := include "relayq.settings" (dict "root" .root "model" .model "section" "scaling") | fromJson -}}
{{- $job := eq $plan.kind "ScaledJob" -}}
{{- $stage := false -}}
{{- range $values.pipelines -}}{{- if has $.name (.stages | default list) -}}{{- $stage = true -}}{{- end -}}{{- end -}}
{{- $structure := $stage | ternary "stage" (.model.transport | default "list") -}}
{{- $gc := $values.lifecycle.gc -}}
{{- $lease := .model.lease_seconds | default 60 -}}
{{- $reap := ceil $gc.intervalSeconds -}}
{{- if eq $structure "sortedset" -}}
{{- $lease = coalesce .model.claim_lease_ttl_seconds .model.lease_seconds $values.claims.leaseTtlSeconds -}}
{{- $reap = max $reap (ceil (divf (coalesce .model.claim_reclaim_interval_ms $values.claims.reclaimIntervalMs) 1000)) -}}
{{- else if $stage -}}
{{- $lease = .model.lease_seconds | default 90 -}}
{{- $reap = max $reap 60 -}}
{{- end -}}
{{- $execution := .model.execution_timeout_seconds | default $values.relay.executionTimeoutSeconds -}}
{{- $drain := $job | ternary $values.relay.drainSeconds (ceil $execution) -}}
{{- $pop := $values.relay.queuePopTimeoutSeconds -}}
{{- if kindIs "invalid" $pop -}}
{{- /* A Job that finds only other relays' work waits until the reaper could have given it one of theirs: would it exit
       at once, KEDA would still count the orphan and start one idle Job after another. */ -}}
{{- $pop = $job | ternary (add $lease $reap) 300 -}}
{{- end -}}
{{- $grace := $values.relay.terminationGracePeriodSeconds -}}
{{- if kindIs "invalid" $grace -}}{{- $grace = add $drain $values.relay.graceMarginSeconds -}}{{- end -}}
{{- $deadline := add $values.relay.schedulingSeconds $values.relay.imagePullSeconds $values.relay.readyTimeoutSeconds
    (int64 $pop) (int64 (ceil $execution)) (int64 $drain) -}}
{{- merge (dict "structure" $structure "leaseSeconds" (int64 $lease) "reapSeconds" (int64 $reap) "popSeconds" (int64 $pop)
    "executionSeconds" $execution "drainSeconds" (int64 $drain) "graceSeconds" (int64 $grace) "deadlineSeconds" (int64 $deadline))
    $plan | toJson -}}
{{- end -}}

{{- /*
relayq.triggers (root, name, structure) -> YAML list: everything that waits plus everything that runs. Counting only what
waits would scale away the relay that has just taken the last job.
*/ -}}
{{- define "relayq.triggers" -}}
{{- $redis := include "relayq.redis" .root | fromJson -}}
{{- $auth := include "relayq.redisAuth" (dict "root" .root "component" "keda") | fromJson -}}
{{- $keys := dict
    "list" (list (list "waiting" (printf "relay:%s:pending" .name)) (list "running" (printf "relay:%s:processing" .name)))
    "sortedset" (list (list "waiting" (printf "queue:%s" .name)) (list "running" (printf "queue:%s:claims-idx" .name)))
    "stage" (list (list "waiting" (printf "queue:%s" .name)) (list "running" (printf "processing:%s" .name)))
    "stream" (list (list "normal" (printf "relay:%s:stream" .name)) (list "high" (printf "relay:%s:stream:high" .name))) -}}
{{- $stream := eq .structure "stream" -}}
{{- range $index, $trigger := get $keys .structure -}}
{{- if $index }}
{{ end -}}
- name: {{ index $trigger 0 }}
  type: {{ $stream | ternary "redis-streams" "redis" }}
  metadata:
    address: {{ $redis.address | quote }}
    databaseIndex: {{ $redis.database | quote }}
    enableTLS: {{ $redis.tls | quote }}
    {{- if $stream }}
    stream: {{ index $trigger 1 | quote }}
    streamLength: "1" # one relay an entry; XACK + XDEL make the length waiting + running
    activationLagCount: "0" # active from the first entry on; no consumerGroup: with one KEDA counts only XPENDING
    {{- else }}
    listName: {{ index $trigger 1 | quote }}
    listLength: "1" # one relay a job
    activationListLength: "0" # active from the first job on: KEDA compares with "greater than"
    {{- end }}
  {{- if or $auth $redis.caSecret }}
  authenticationRef: {name: {{ include "relayq.name" (dict "root" $.root "suffix" "redis") }}}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* relayq.modelsFile -> the text of models.yaml: what was given, without what is only the chart's. */ -}}
{{- define "relayq.modelsFile" -}}
{{- $models := dict -}}
{{- range $name, $model := include "relayq.models" . | fromJson -}}
{{- $_ := set $models $name (omit $model "scaling" "inference") -}}
{{- end -}}
{{- $file := dict "models" $models -}}
{{- with .Values.providers -}}{{- $_ := set $file "providers" . -}}{{- end -}}
{{- with .Values.pipelines -}}{{- $_ := set $file "pipelines" . -}}{{- end -}}
{{- toYaml $file -}}
{{- end -}}
