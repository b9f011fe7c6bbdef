{{- define "locksidecar.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "locksidecar.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "locksidecar.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "locksidecar.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "locksidecar.selector" -}}
app.kubernetes.io/name: {{ include "locksidecar.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "locksidecar.labels" -}}
{{ include "locksidecar.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: daemon
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The daemon's configuration: what is set in several places, and the rest. */}}
{{- define "locksidecar.config" -}}
{{- $c := dict "socket" (printf "%s/locksidecar.sock" .Values.socket.directory) "admin_listen" (printf ":%v" .Values.metrics.port) "log" (dict "format" "json" "level" .Values.logLevel) }}
{{- if not .Values.upstream.secret.name }}
{{- $_ := set $c "upstream" (.Values.upstream.url | default "memory:") }}
{{- end }}
{{- if .Values.upstream.password.name }}
{{- $_ := set $c "password_file" "/etc/locksidecar/secret/password" }}
{{- end }}
{{- with .Values.namespaces }}
{{- $_ := set $c "namespaces" . }}
{{- end }}
{{- toYaml (mergeOverwrite (deepCopy .Values.config) $c) }}
{{- end }}
