{{- define "kith.labels" -}}
{{ include "kith.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "kith.selector" -}}
app.kubernetes.io/name: kith
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
