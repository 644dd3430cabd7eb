{{- define "relayq.relayEnv" -}}
{{- $values := .root.Values -}}
{{ include "relayq.commonEnv" (dict "root" .root "component" "relay") }}
- {name: RELAY_MODEL, value: {{ .name | quote }}}
- {name: RELAY_QUEUE_POP_TIMEOUT_SECONDS, value: {{ int64 .plan.popSeconds | quote }}}
- {name: RELAY_INFERENCE_URL, value: {{ printf "http://127.0.0.1:%d" (int .inference.port) | quote }}}
- {name: RELAY_READY_TIMEOUT_SECONDS, value: {{ include "relayq.number" $values.relay.readyTimeoutSeconds | quote }}}
- {name: RELAY_EXECUTION_TIMEOUT_SECONDS, value: {{ include "relayq.number" .plan.executionSeconds | quote }}}
- {name: RELAY_DRAIN_SECONDS, value: {{ int64 .plan.drainSeconds | quote }}}
- {name: RELAY_MAX_JOBS, value: {{ int64 .plan.maxJobs | quote }}}
{{- if eq .plan.kind "ScaledJob" }}
- {name: RELAY_EXIT_WHEN_EMPTY, value: "true"} # a surplus Job ends at once, before the model is needed
{{- end }}
- {name: RELAY_BREAKER_FAILURES, value: {{ include "relayq.number" $values.relay.breaker.failures | quote }}}
- {name: RELAY_BREAKER_COOLDOWN_SECONDS, value: {{ include "relayq.number" $values.relay.breaker.cooldownSeconds | quote }}}
- {name: RELAY_METRICS_HOST, value: 0.0.0.0}
- {name: RELAY_METRICS_PORT, value: "9102"}
{{- end -}}

{{- /*
relayq.relayPod (root, name, model, plan) -> metadata and spec of a pod template: one relay and its inference server.
*/ -}}
{{- define "relayq.relayPod" -}}
{{- $relay := .root.Values.relay -}}
{{- $inference := include "relayq.settings" (dict "root" .root "model" .model "section" "inference") | fromJson -}}
{{- $id := dict "root" .root "component" "relay" "model" .name -}}
{{- $mock := not $inference.image -}}
{{- $job := eq .plan.kind "ScaledJob" -}}
metadata:
  labels:
    {{- include "relayq.labels" $id | nindent 4 }}
    {{- with $relay.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    relayq/model: {{ .name | quote }}
    {{- include "relayq.checksums" $id | nindent 4 }}
    {{- with $relay.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "relayq.podFrame" (merge (dict "accountName" (include "relayq.serviceAccountName" $id)) $id) | nindent 2 }}
  {{- if $job }}
  restartPolicy: Never # the reaper gives a dead relay's job to another; Kubernetes restarts nothing
  {{- end }}
  terminationGracePeriodSeconds: {{ int64 .plan.graceSeconds }} # above the drain: SIGKILL must not come first
  {{- with include "relayq.placement" (merge (dict "selectorLabels" (include "relayq.selectorLabels" $id)) (pick $inference "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" "runtimeClassName")) }}
  {{- . | nindent 2 }}
  {{- end }}
  initContainers:
    # A native sidecar: it does not keep a Job from completing, outlives the relay's drain, and its exit code does not
    # count. No startupProbe: the relay starts at once, looks at the queue and only then waits for /health.
    - name: inference
      restartPolicy: Always
      image: {{ $inference.image | default (include "relayq.image" (dict "root" .root "repository" .root.Values.mockInference.image)) | quote }}
      imagePullPolicy: {{ $mock | ternary .root.Values.image.pullPolicy $inference.imagePullPolicy | default "IfNotPresent" }}
      {{- with $inference.command }}
      command:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $inference.args | default ($mock | ternary (list "python" "-m" "mock_inference") nil) }}
      args:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - {name: inference, containerPort: {{ int $inference.port }}}
      {{- $own := "" }}
      {{- if $mock }}
      {{- $own = printf "- {name: MOCK_HOST, value: 127.0.0.1}\n- {name: MOCK_PORT, value: %q}" (toString (int $inference.port)) }}
      {{- end }}
      {{- with include "relayq.env" (dict "own" $own "extra" $inference.env "where" (printf "models.%s.inference.env" .name)) }}
      env:
        {{- . | nindent 8 }}
      {{- end }}
      {{- with $inference.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- range $probe := list "livenessProbe" "readinessProbe" }}
      {{- with get $inference $probe }}
      {{ $probe }}:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- end }}
      {{- with $mock | ternary .root.Values.securityContext $inference.securityContext }}
      securityContext:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with and $mock (eq (toJson $inference.resources) "{}") | ternary .root.Values.mockInference.resources $inference.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $inference.volumeMounts }}
      volumeMounts:
        {{- toYaml . | nindent 8 }}
      {{- end }}
  containers:
    - name: relay
      image: {{ include "relayq.image" (dict "root" .root "repository" $relay.image) | quote }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      {{- if $job }}
      args: [python, -m, relay] # not command: the image's entry point passes signals on from the first instant
      {{- else }}
      # A container that exits is restarted with a back-off of up to 5 minutes, so the supervisor runs one relay process
      # after another; each is fresh and the model stays warm.
      args: [relayq, supervise, --, python, -m, relay]
      {{- end }}
      ports:
        - {name: metrics, containerPort: 9102}
      env:
        {{- include "relayq.env" (dict "own" (include "relayq.relayEnv" (merge (dict "inference" $inference) .)) "extra" $relay.extraEnv "where" "relay.extraEnv") | nindent 8 }}
      {{- with $relay.extraEnvFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- include "relayq.probes" .root | nindent 6 }}
      {{- with .root.Values.securityContext }}
      securityContext:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $relay.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        {{- include "relayq.volumeMounts" .root | nindent 8 }}
        {{- with $relay.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    {{- include "relayq.volumes" .root | nindent 4 }}
    {{- with concat ($inference.volumes | default list) ($relay.extraVolumes | default list) }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
