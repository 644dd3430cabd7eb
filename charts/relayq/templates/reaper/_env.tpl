{{- define "relayq.reaperEnv" -}}
{{- $gc := .Values.lifecycle.gc -}}
{{ include "relayq.commonEnv" (dict "root" . "component" "reaper") }}
- {name: REAPER_ENABLED, value: "true"}
- {name: REAPER_INTERVAL_SECONDS, value: {{ include "relayq.number" $gc.intervalSeconds | quote }}}
- {name: REAPER_DEATH_GRACE_SECONDS, value: {{ include "relayq.number" $gc.deathGraceSeconds | quote }}}
- {name: REAPER_ORPHAN_MIN_AGE_SECONDS, value: {{ include "relayq.number" $gc.orphanMinAgeSeconds | quote }}}
- {name: REAPER_METRICS_HOST, value: 0.0.0.0}
- {name: REAPER_METRICS_PORT, value: "9103"}
{{- end -}}
