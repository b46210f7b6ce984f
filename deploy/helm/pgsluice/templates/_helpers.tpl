{{- define "pgsluice.labels" -}}
app.kubernetes.io/name: pgsluice
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* What tells the pods of one role from all others: never changes. Given: root, role (replicator, or a worker's name). */}}
{{- define "pgsluice.selector" -}}
app.kubernetes.io/name: pgsluice
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{/* One role: its configuration and its Deployment. Given: root, role, args, config, secretName, resources, claim ("": none). */}}
{{- define "pgsluice.role" -}}
{{- $values := .root.Values }}
{{- $name := printf "%s-%s" .root.Release.Name .role }}
{{- $listen := dict "metrics-listen" (printf "0.0.0.0:%v" $values.metricsPort) }}
{{- $config := mustMergeOverwrite (deepCopy $values.config) (deepCopy .config) $listen | toYaml }}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $name }}
  labels:
    {{- include "pgsluice.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
data:
  pgsluice.yaml: |
    {{- $config | nindent 4 }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  labels:
    {{- include "pgsluice.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
spec:
  replicas: 1
  strategy:
    type: Recreate            # a slot has one reader, a worker's name one process: a second one would only wait
  selector:
    matchLabels:
      {{- include "pgsluice.selector" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "pgsluice.selector" . | nindent 8 }}
        {{- with $values.pod.labels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        checksum/config: {{ $config | sha256sum }}
        prometheus.io/scrape: "true"
        prometheus.io/port: {{ $values.metricsPort | quote }}
        {{- with $values.pod.annotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false          # a service "pgsluice" would set PGSLUICE_PORT, which is an option's variable
      shareProcessNamespace: true        # the pause container reaps what Spark's JVM leaves behind
      terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
      {{- range $index, $secret := $values.image.pullSecrets }}
      {{- if not $index }}
      imagePullSecrets:
      {{- end }}
        - name: {{ $secret }}
      {{- end }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 10001                 # the image's account: Spark asks for its name
        runAsGroup: 10001
        fsGroup: 10001
        seccompProfile:
          type: RuntimeDefault
      containers:
        - name: pgsluice
          image: "{{ $values.image.repository }}:{{ $values.image.tag | default .root.Chart.AppVersion }}"
          imagePullPolicy: {{ $values.image.pullPolicy }}
          args: {{ toJson (concat .args (list "--config" "/etc/pgsluice/pgsluice.yaml")) }}
          {{- with $values.pod.env }}
          env:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          ports:
            - name: metrics
              containerPort: {{ $values.metricsPort }}
          livenessProbe:                 # ten minutes in which nothing moved though something should have
            httpGet: {path: /healthz, port: metrics}
            periodSeconds: 30
            timeoutSeconds: 5
            failureThreshold: 20
          readinessProbe:
            httpGet: {path: /readyz, port: metrics}
            periodSeconds: 10
            timeoutSeconds: 5
          resources:
            {{- toYaml .resources | nindent 12 }}
          terminationMessagePolicy: FallbackToLogsOnError   # the last line says what a person has to do
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
          volumeMounts:
            - {name: config, mountPath: /etc/pgsluice, readOnly: true}
            {{- if .secretName }}
            - {name: secrets, mountPath: /run/secrets/pgsluice, readOnly: true}
            {{- end }}
            {{- if .claim }}
            - {name: files, mountPath: /var/lib/pgsluice}
            {{- end }}
            - {name: temporary, mountPath: /tmp}
            - {name: shared-memory, mountPath: /dev/shm}
            {{- with $values.pod.volumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        - name: config
          configMap: {name: {{ $name }}}
        {{- if .secretName }}
        - name: secrets
          secret:
            secretName: {{ .secretName }}
            defaultMode: 0440
        {{- end }}
        {{- if .claim }}
        - name: files
          persistentVolumeClaim: {claimName: {{ .claim }}}
        {{- end }}
        - name: temporary
          emptyDir: {sizeLimit: {{ $values.temporary }}}
        - name: shared-memory
          emptyDir: {medium: Memory, sizeLimit: {{ $values.sharedMemory }}}
        {{- with $values.pod.volumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with $values.pod.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.pod.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.pod.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
{{- end }}
