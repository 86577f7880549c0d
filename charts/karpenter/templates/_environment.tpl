{{- /* The environment of the controller, without the variables that `controller.env` sets. */}}
{{- define "karpenter.environment" -}}
{{- $given := dict }}
{{- range .Values.controller.env }}{{ $_ := set $given .name true }}{{ end }}
{{- $entries := list }}
{{- range include "karpenter.chartEnvironment" . | fromYamlArray }}
{{- if not (hasKey $given .name) }}{{ $entries = append $entries . }}{{ end }}
{{- end }}
{{- toYaml (concat $entries .Values.controller.env) }}
{{- end }}

{{- define "karpenter.chartEnvironment" -}}
{{- $settings := include "karpenter.settings" . | fromJson }}
{{- $name := .Values.controller.containerName }}
- name: KARPENTER_PROVIDER
  value: {{ .Values.provider }}
- name: LOG_LEVEL
  value: {{ .Values.logLevel }}
- name: LOG_OUTPUT_PATHS
  value: {{ join "," .Values.logOutputPaths | quote }}
- name: LOG_ERROR_OUTPUT_PATHS
  value: {{ join "," .Values.logErrorOutputPaths | quote }}
- name: METRICS_PORT
  value: {{ .Values.controller.metrics.port | quote }}
- name: HEALTH_PROBE_PORT
  value: {{ .Values.controller.healthProbe.port | quote }}
{{- if .Values.webhook.enabled }}
- name: KARPENTER_SERVICE # where the API server finds the conversion webhook
  value: {{ include "karpenter.fullname" . }}
- name: WEBHOOK_PORT
  value: {{ .Values.webhook.port | quote }}
{{- else }}
- name: DISABLE_WEBHOOK
  value: "true"
{{- end }}
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: CPU_REQUESTS # thousandths of a core
  valueFrom:
    resourceFieldRef:
      containerName: {{ $name }}
      resource: requests.cpu
      divisor: 1m
- name: MEMORY_LIMIT # bytes
  valueFrom:
    resourceFieldRef:
      containerName: {{ $name }}
      resource: limits.memory
      divisor: "1"
- name: FEATURE_GATES
  value: {{ include "karpenter.gateList" (dict "values" $settings.featureGates "gates" (include "karpenter.gates" . | fromYamlArray) "profile" (include "karpenter.profile" .)) }}
{{- if eq .Values.provider "aws" }}
- name: AWS_FEATURE_GATES
  value: {{ include "karpenter.gateList" (dict "values" $settings.awsFeatureGates "gates" (include "karpenter.awsGates" . | fromYamlArray) "profile" (include "karpenter.profile" .)) }}
{{- end }}
{{- include "karpenter.variables" (dict "root" . "values" $settings "variables" (include "karpenter.variablesOfSettings" . | fromYaml)) }}
{{- include "karpenter.variables" (dict "root" . "values" $settings.intervals "variables" (include "karpenter.variablesOfIntervals" . | fromYaml)) }}
{{- end }}
