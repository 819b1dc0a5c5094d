{{/* A cluster has one driver of this name, so objects have fixed names: zvolt, zvolt-controller, zvolt-agent, zvolt-node. */}}
{{- define "zvolt.driver" -}}
zfs.csi.randomvariable.co.uk
{{- end }}

{{- define "zvolt.labels" -}}
app.kubernetes.io/name: zvolt
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* What never changes in a workload's life. */}}
{{- define "zvolt.selector" -}}
app.kubernetes.io/name: zvolt
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "zvolt.image" -}}
{{- with .image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.root.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{- define "zvolt.sidecar" -}}
image: {{ .root.Values.sidecars.repository }}/{{ .name }}:{{ .tag }}
imagePullPolicy: {{ .root.Values.sidecars.pullPolicy }}
resources: {{ toJson .root.Values.sidecars.resources }}
{{- end }}

{{/* Of containers that need nothing of the kernel. */}}
{{- define "zvolt.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "zvolt.log" -}}
- {name: ZVOLT_LOG_FORMAT, value: {{ .Values.log.format }}}
- {name: RUST_LOG, value: {{ .Values.log.filter | quote }}}
{{- end }}

{{- define "zvolt.own-node" -}}
- {name: ZVOLT_NODE_ID, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
{{- end }}

{{/* Defined by parts: a class of {kind, apiVersion, default annotation}. */}}
{{- define "zvolt.class-metadata" -}}
metadata:
  name: {{ .class.name }}
  labels: {{- include "zvolt.labels" .root | nindent 4 }}
  {{- if .class.default }}
  annotations: {{ dict .annotation "true" | toJson }}
  {{- end }}
{{- end }}
