{{- /* A binding of a role of the same name to the controller's ServiceAccount. Takes a dict: root, kind, name, and for Roles namespace. */}}
{{- define "karpenter.binding" }}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}Binding
metadata:
  {{- include "karpenter.metadata" . | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ .name }}
subjects:
- kind: ServiceAccount
  name: {{ include "karpenter.serviceAccountName" .root }}
  namespace: {{ .root.Release.Namespace }}
{{- end }}
