{{- define "karpenter.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* The release's name alone where it contains the chart's. */}}
{{- define "karpenter.fullname" -}}
{{- $name := include "karpenter.name" . }}
{{- $joined := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- .Values.fullnameOverride | default $joined | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "karpenter.serviceAccountName" -}}
{{ .Values.serviceAccount.name | default (ternary (include "karpenter.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "karpenter.selectorLabels" -}}
app.kubernetes.io/name: {{ include "karpenter.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "karpenter.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "karpenter.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.additionalLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Metadata of an object. Takes a dict: root, name, and optionally namespace, labels, annotations. */}}
{{- define "karpenter.metadata" -}}
name: {{ .name }}
{{- with .namespace }}
namespace: {{ . }}
{{- end }}
labels:
  {{- include "karpenter.labels" .root | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) .root.Values.additionalAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "karpenter.image" -}}
{{- $image := .Values.controller.image }}
{{- $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- with $image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- /* The value at a dotted path as JSON; nothing where it is not set. Takes a dict: values, path. */}}
{{- define "karpenter.lookup" -}}
{{- $state := dict "node" .values "found" true }}
{{- range splitList "." .path }}
{{- if and $state.found (kindIs "map" $state.node) (hasKey $state.node .) }}
{{- $_ := set $state "node" (get $state.node .) }}
{{- else }}
{{- $_ := set $state "found" false }}
{{- end }}
{{- end }}
{{- if and $state.found (not (kindIs "invalid" $state.node)) (ne (toString $state.node) "") }}
{{- toJson $state.node }}
{{- end }}
{{- end }}

{{- /* `settings` with the values of older charts where the new name is not set. */}}
{{- define "karpenter.settings" -}}
{{- $settings := deepCopy .Values.settings }}
{{- range (.Files.Get "files/old-values.yaml" | fromYaml).values }}
{{- if hasKey . "new" }}
{{- $name := trimPrefix "settings." .new }}
{{- $old := include "karpenter.lookup" (dict "values" $.Values "path" .old) }}
{{- if and $old (not (include "karpenter.lookup" (dict "values" $settings "path" $name))) }}
{{- $_ := set $settings $name ((printf "{\"value\": %s}" $old | fromJson).value) }}
{{- end }}
{{- end }}
{{- end }}
{{- $_ := include "karpenter.resolveDevices" $settings }}
{{- if and (eq (toString $settings.legacyNodeRepair) "true") (eq (toString $settings.featureGates.terminateFirstRepair) "true") }}
{{- fail "settings.legacyNodeRepair can't be combined with settings.featureGates.terminateFirstRepair: the controller of release 1.14 knows no budgets" }}
{{- end }}
{{- toJson $settings }}
{{- end }}

{{- /* Sets what `settings.enableDRA` and the gates of devices stand for. Takes the settings and changes them. */}}
{{- define "karpenter.resolveDevices" -}}
{{- $unset := list "" "<nil>" }}
{{- $gates := .awsFeatureGates }}
{{- if eq (toString .enableDRA) "true" }}
{{- $others := list }}
{{- range $name := list "draNVIDIAGPU" "draEFA" }}
{{- $value := toString (get $gates $name) }}
{{- if not (has $value $unset) }}{{ $others = append $others (printf "settings.awsFeatureGates.%s=%s" $name $value) }}{{ end }}
{{- $_ := set $gates $name true }}
{{- end }}
{{- $ignored := toString .ignoreDRARequests }}
{{- if not (has $ignored $unset) }}{{ $others = append $others (printf "settings.ignoreDRARequests=%s" $ignored) }}{{ end }}
{{- if $others }}{{ fail (printf "settings.enableDRA is mutually exclusive with %s: leave out one or the other" (join ", " $others)) }}{{ end }}
{{- end }}
{{- if or (eq (toString $gates.draNVIDIAGPU) "true") (eq (toString $gates.draEFA) "true") }}
{{- $_ := set . "ignoreDRARequests" false }}
{{- else if has (toString .ignoreDRARequests) $unset }}
{{- $_ := set . "ignoreDRARequests" true }}
{{- end }}
{{- end }}

{{- /* A value as the text of an environment variable. Takes a dict: root, value. Texts are templates, numbers keep their digits. */}}
{{- define "karpenter.text" -}}
{{- if kindIs "string" .value -}}{{ tpl .value .root }}{{- else -}}{{ toJson .value }}{{- end -}}
{{- end }}

{{- /* Variables of the values that are set, false and 0 included. Takes a dict: root, values, variables (of names). */}}
{{- define "karpenter.variables" -}}
{{- range $variable, $name := .variables }}
{{- $value := get $.values $name }}
{{- if and (hasKey $.values $name) (not (kindIs "invalid" $value)) (ne (toString $value) "") }}
- name: {{ $variable }}
  value: {{ include "karpenter.text" (dict "root" $.root "value" $value) | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The profile in force: that of `controller.env` wins, as for every variable. */}}
{{- define "karpenter.profile" -}}
{{- $profile := get (include "karpenter.settings" . | fromJson) "profile" | default "lean" }}
{{- range .Values.controller.env }}
{{- if eq .name "KARPENTER_PROFILE" }}{{ $profile = .value | default "lean" }}{{ end }}
{{- end }}
{{- $profile }}
{{- end }}

{{- /* A list of feature gates as the process reads it; a gate without a value has that of the profile. Takes a dict: values, gates, profile. */}}
{{- define "karpenter.gateList" -}}
{{- $list := list }}
{{- range .gates }}
{{- $value := get $.values .value }}
{{- if has (toString $value) (list "" "<nil>") }}{{ $value = get . $.profile }}{{ end }}
{{- $list = append $list (printf "%s=%v" .gate $value) }}
{{- end }}
{{- join "," $list }}
{{- end }}

{{- define "karpenter.leaseName" -}}
{{- tpl (get (include "karpenter.settings" . | fromJson) "leaderElectionName" | default "karpenter-leader-election") . }}
{{- end }}

{{- define "karpenter.leaseNamespace" -}}
{{- tpl (get (include "karpenter.settings" . | fromJson) "leaderElectionNamespace" | default .Release.Namespace) . }}
{{- end }}

{{- /* Whether one replica, or a cluster without zones, must not wait for a spread. */}}
{{- define "karpenter.isRelaxed" -}}
{{- if or (le (int .Values.replicas) 1) (eq .Values.provider "simulated") }}true{{ end }}
{{- end }}

{{- /* The affinity of the pods: selectors added, an old rule against nodes of Provisioners repeated for NodePools. */}}
{{- define "karpenter.affinity" -}}
{{- $affinity := deepCopy .Values.affinity }}
{{- $selector := dict "matchLabels" (include "karpenter.selectorLabels" . | fromYaml) }}
{{- range $side := list "podAffinity" "podAntiAffinity" }}
{{- with get $affinity $side }}
{{- range .requiredDuringSchedulingIgnoredDuringExecution }}
{{- if not .labelSelector }}{{ $_ := set . "labelSelector" $selector }}{{ end }}
{{- end }}
{{- range .preferredDuringSchedulingIgnoredDuringExecution }}
{{- if not .podAffinityTerm.labelSelector }}{{ $_ := set .podAffinityTerm "labelSelector" $selector }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- range (dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" list $affinity) }}
{{- $keys := dict }}
{{- range .matchExpressions }}{{ $_ := set $keys .key .operator }}{{ end }}
{{- if and (eq (get $keys "karpenter.sh/provisioner-name") "DoesNotExist") (not (hasKey $keys "karpenter.sh/nodepool")) }}
{{- $_ := set . "matchExpressions" (append .matchExpressions (dict "key" "karpenter.sh/nodepool" "operator" "DoesNotExist")) }}
{{- end }}
{{- end }}
{{- if le (int .Values.replicas) 1 }}
{{- $_ := unset $affinity "podAntiAffinity" }}
{{- end }}
{{- toYaml $affinity }}
{{- end }}

{{- define "karpenter.topologySpreadConstraints" -}}
{{- $constraints := deepCopy .Values.topologySpreadConstraints }}
{{- $selector := dict "matchLabels" (include "karpenter.selectorLabels" . | fromYaml) }}
{{- $relaxed := include "karpenter.isRelaxed" . }}
{{- range $constraints }}
{{- if not .labelSelector }}{{ $_ := set . "labelSelector" $selector }}{{ end }}
{{- if $relaxed }}{{ $_ := set . "whenUnsatisfiable" "ScheduleAnyway" }}{{ end }}
{{- end }}
{{- toYaml $constraints }}
{{- end }}

{{- /* Sentences about values of older charts that are in use. */}}
{{- define "karpenter.notices" -}}
{{- range (.Files.Get "files/old-values.yaml" | fromYaml).values }}
{{- if include "karpenter.lookup" (dict "values" $.Values "path" .old) }}
* `{{ .old }}` {{ if .new }}is deprecated: use `{{ .new }}`{{ else }}{{ .note }}{{ end }}.
{{- end }}
{{- end }}
{{- if contains "karpenter.sh/provisioner-name" (toJson .Values.affinity) }}
* `affinity` names `karpenter.sh/provisioner-name`, which new nodes do not carry: use `karpenter.sh/nodepool`. The chart has added it.
{{- end }}
{{- end }}
