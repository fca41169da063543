{{- define "gate.name" -}}
{{- .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* A CronJob's name has at most 52 characters, and ours ends in `-certificate`. */}}
{{- define "gate.fullname" -}}
{{- $full := .Release.Name }}
{{- if not (contains .Chart.Name .Release.Name) }}
{{- $full = printf "%s-%s" .Release.Name .Chart.Name }}
{{- end }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride }}
{{- else if le (len $full) 40 }}
{{- $full }}
{{- else }}
{{- /* Releases whose names begin alike must not meet in one. */}}
{{- printf "%s-%s" ($full | trunc 31 | trimSuffix "-") (.Release.Name | sha256sum | trunc 8) }}
{{- end }}
{{- end }}

{{- define "gate.selector" -}}
app.kubernetes.io/name: {{ include "gate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gate.labels" -}}
{{ include "gate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: vllm-admission
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "gate.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- define "gate.secret" -}}
{{- .Values.certificate.secretName | default (printf "%s-tls" (include "gate.fullname" .)) }}
{{- end }}

{{- define "gate.container-security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "gate.pod-security" -}}
runAsNonRoot: true
{{- with .Values.runAsUser }}
runAsUser: {{ int64 . }}
runAsGroup: {{ int64 . }}
fsGroup: {{ int64 . }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "gate.namespaces" -}}
matchExpressions:
  - key: vllm-admission/mode
    operator: In
    values: {{ .modes | toJson }}
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values: {{ append .gate.Values.webhook.excludedNamespaces .gate.Release.Namespace | uniq | toJson }}
{{- end }}

{{- /* cert-manager's injector, or another one's. */}}
{{- define "gate.webhook-annotations" -}}
{{- if eq .Values.certificate.source "cert-manager" }}
cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/{{ include "gate.fullname" . }}
{{- end }}
{{- with .Values.webhook.annotations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Kinds that a webhook is registered for, and whose pods need not be judged again. */}}
{{- define "gate.owners" -}}
'v1 ReplicationController', 'apps/v1 Deployment', 'apps/v1 StatefulSet', 'apps/v1 ReplicaSet', 'apps/v1 DaemonSet', 'batch/v1 Job', 'batch/v1 CronJob'
{{- if .Values.webhook.customResources }}, 'leaderworkerset.x-k8s.io/v1 LeaderWorkerSet'{{ end }}
{{- end }}

{{- define "gate.webhook" }}
    admissionReviewVersions: [v1]
    sideEffects: None
    matchPolicy: Equivalent
    timeoutSeconds: {{ .gate.Values.webhook.timeoutSeconds }}
    failurePolicy: {{ .failurePolicy }}
    clientConfig:
      service:
        name: {{ include "gate.fullname" .gate }}
        namespace: {{ .gate.Release.Namespace }}
        path: {{ .path }}
        port: 443
      {{- with .gate.Values.certificate.caBundle }}
      caBundle: {{ b64enc . }}
      {{- end }}
    namespaceSelector:
      {{- include "gate.namespaces" (dict "gate" .gate "modes" .modes) | nindent 6 }}
    {{- with .gate.Values.webhook.objectSelector }}
    objectSelector:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    matchConditions:
      # Mirror pods are made by nodes; nobody can change them.
      - name: not-from-a-node
        expression: "!has(request.userInfo.groups) || !('system:nodes' in request.userInfo.groups)"
      # The gate lets these through unread. Without it, too, finalizers can be taken off, and what
      # runs already can have its pods replaced.
      - name: not-on-its-way-out
        expression: "!has(object.metadata.deletionTimestamp)"
      - name: not-of-a-judged-owner
        expression: >-
          !has(object.metadata.ownerReferences) || !object.metadata.ownerReferences.exists(o,
          has(o.controller) && o.controller && (o.apiVersion + ' ' + o.kind) in
          [{{ include "gate.owners" .gate }}])
    rules:
      - operations: [CREATE, UPDATE]
        scope: Namespaced
        apiGroups: [""]
        apiVersions: [v1]
        resources: [pods, replicationcontrollers]
      - operations: [CREATE, UPDATE]
        scope: Namespaced
        apiGroups: [apps]
        apiVersions: [v1]
        resources: [deployments, statefulsets, replicasets, daemonsets]
      - operations: [CREATE, UPDATE]
        scope: Namespaced
        apiGroups: [batch]
        apiVersions: [v1]
        resources: [jobs, cronjobs]
      {{- if .gate.Values.webhook.customResources }}
      # Of kinds that are not installed the API server takes no notice.
      - operations: [CREATE, UPDATE]
        scope: Namespaced
        apiGroups: [leaderworkerset.x-k8s.io]
        apiVersions: [v1]
        resources: [leaderworkersets]
      - operations: [CREATE, UPDATE]
        scope: Namespaced
        apiGroups: [serving.kserve.io]
        apiVersions: ["*"]
        resources: [inferenceservices, servingruntimes, llminferenceservices, llminferenceserviceconfigs]
      - operations: [CREATE, UPDATE]
        scope: Namespaced
        apiGroups: [ray.io]
        apiVersions: ["*"]
        resources: [rayservices, rayclusters, rayjobs]
      - operations: [CREATE, UPDATE]
        scope: Namespaced
        apiGroups: [nvidia.com]
        apiVersions: ["*"]
        resources: [dynamographdeployments, dynamocomponentdeployments]
      - operations: [CREATE, UPDATE]
        scope: Namespaced
        apiGroups: [kubeai.org]
        apiVersions: ["*"]
        resources: [models]
      - operations: [CREATE, UPDATE]
        scope: Namespaced
        apiGroups: [orchestration.aibrix.ai]
        apiVersions: ["*"]
        resources: [stormservices, rayclusterfleets]
      - operations: [CREATE, UPDATE]
        scope: Namespaced
        apiGroups: [production-stack.vllm.ai]
        apiVersions: ["*"]
        resources: [vllmruntimes]
      - operations: [CREATE, UPDATE]
        scope: Namespaced
        apiGroups: [fma.llm-d.ai]
        apiVersions: ["*"]
        resources: [inferenceserverconfigs]
      - operations: [CREATE, UPDATE]
        scope: Namespaced
        apiGroups: [argoproj.io]
        apiVersions: ["*"]
        resources: [rollouts]
      {{- end }}
{{- end }}

{{- define "gate.certificate-job" }}
backoffLimit: 6
activeDeadlineSeconds: 300
ttlSecondsAfterFinished: 600
template:
  metadata:
    labels:
      app.kubernetes.io/name: {{ include "gate.name" . }}-certificate
      app.kubernetes.io/instance: {{ .Release.Name }}
      {{- with .Values.commonLabels }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
  spec:
    serviceAccountName: {{ include "gate.fullname" . }}-certificate
    automountServiceAccountToken: true
    enableServiceLinks: false
    restartPolicy: OnFailure
    {{- with .Values.imagePullSecrets }}
    imagePullSecrets:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    securityContext:
      {{- include "gate.pod-security" . | nindent 6 }}
    {{- with .Values.nodeSelector }}
    nodeSelector:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .Values.tolerations }}
    tolerations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    containers:
      - name: certificate
        image: {{ include "gate.image" . }}
        imagePullPolicy: {{ .Values.image.pullPolicy }}
        args:
          - certificate
          - --namespace={{ .Release.Namespace }}
          - --service={{ include "gate.fullname" . }}
          - --secret={{ include "gate.secret" . }}
          - --configuration={{ include "gate.fullname" . }}
        resources:
          requests: {cpu: 100m, memory: 128Mi}
          limits: {cpu: 100m, memory: 128Mi}
        securityContext:
          {{- include "gate.container-security" . | nindent 10 }}
{{- end }}
