{{- /* The chart uses the same objects as the kustomizations, because files/ links to deploy/. These templates set the values of a release. */}}

{{- define "hyperfleet.labels" -}}
app.kubernetes.io/part-of: hyperfleet
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "hyperfleet.files" -}}
runners: [files/base/serviceaccount.yaml, files/base/rolebinding.yaml, files/base/tenancy.yaml, files/base/configmap.yaml, files/base/deployment.yaml, files/base/poddisruptionbudget.yaml, files/base/service.yaml, files/base/networkpolicy.yaml]
networking: [files/base/networking.yaml]
hosts: [files/base/hosts.yaml]
bridge: [files/bridge/bridge.yaml, files/bridge/tenancy.yaml]
{{- end }}

{{- /* Renders each object in a file. The argument is a dict with root, path, the arguments of "hyperfleet.object", adapter, the name of an adapter, rename, a dict with words in the file and what replaces them, and kinds, the kinds to render if not all. */}}
{{- define "hyperfleet.each" }}
{{- $text := .root.Files.Get .path }}
{{- if not $text }}{{ fail (printf "the chart has no file %s" .path) }}{{ end }}
{{- with .adapter }}{{ $text = replace "hyperfleet-adapter" (printf "hyperfleet-adapter-%s" .) $text }}{{ end }}
{{- range $from, $to := .rename }}{{ $text = replace $from $to $text }}{{ end }}
{{- /* The names of ServiceAccounts in expressions of admission policies. */}}
{{- $text = replace "system:serviceaccount:hyperfleet-system:" (printf "system:serviceaccount:%s:" .root.Release.Namespace) $text }}
{{- range $part := regexSplit "(?m)^---$" $text -1 }}
{{- $object := fromYaml $part }}
{{- if $object.Error }}{{ fail (printf "%s: %s" $.path $object.Error) }}{{ end }}
{{- if and $object.kind (or (not $.kinds) (has $object.kind $.kinds)) }}
---
{{ include "hyperfleet.object" (merge (dict "object" $object) (omit $ "path" "kinds" "rename")) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Renders one object with the values of the release. The argument is a dict with root, object, settings of its area, namespace if it differs from the namespace of the release, and runners, the ServiceAccounts that replace hyperfleet-runners in bindings. */}}
{{- define "hyperfleet.object" }}
{{- $object := .object }}
{{- $settings := .settings | default dict }}
{{- $release := .root.Release.Namespace }}
{{- if or $object.metadata.namespace .namespace }}
{{- $_ := set $object.metadata "namespace" (.namespace | default $release) }}
{{- end }}
{{- $_ := set $object.metadata "labels" (merge ($object.metadata.labels | default dict) ($.labels | default dict) (include "hyperfleet.labels" .root | fromYaml)) }}
{{- if and $.runners $object.subjects }}
{{- $subjects := list }}
{{- range $subject := $object.subjects }}
{{- if eq $subject.name "hyperfleet-runners" }}
{{- range $name := $.runners }}{{ $subjects = append $subjects (merge (dict "name" $name) $subject) }}{{ end }}
{{- else }}{{ $subjects = append $subjects $subject }}{{ end }}
{{- end }}
{{- $_ := set $object "subjects" $subjects }}
{{- end }}
{{- range $subject := $object.subjects }}
{{- $_ := set $subject "namespace" $release }}
{{- with $.account }}{{ $_ := mergeOverwrite $subject . }}{{ end }}
{{- end }}
{{- $isRendered := true }}
{{- if eq $object.kind "ConfigMap" }}
{{- range $file, $text := $object.data }}
{{- $_ := set $object.data $file (include "hyperfleet.config" (dict "root" $.root "settings" $settings "file" $file "text" $text "adapter" $.adapter)) }}
{{- end }}
{{- with $settings.task }}{{ $_ := set $object.data "task.yaml" . }}{{ end }}
{{- else if has $object.kind (list "Deployment" "CronJob") }}
{{- include "hyperfleet.pods" . }}
{{- else if and (eq $object.kind "ClusterRole") $settings.rules }}
{{- $_ := set $object "rules" $settings.rules }}
{{- else if eq $object.kind "PodDisruptionBudget" }}
{{- $replicas := $settings.replicas | default 2 }}
{{- with $settings.autoscaling }}{{ $replicas = .minReplicas | default 1 }}{{ end }}
{{- $isRendered = ne (int $replicas) 1 }}
{{- else if eq $object.kind "NetworkPolicy" }}
{{- $isRendered = .root.Values.networkPolicies }}
{{- $_ := set $object.spec "egress" (concat $object.spec.egress ($settings.egress | default list)) }}
{{- end }}
{{- if $isRendered }}{{ toYaml $object }}{{ end }}
{{- end }}

{{- /* Renders an object that exists during helm uninstall and is deleted after its success. The argument is a dict with root, object and weight. */}}
{{- define "hyperfleet.hook" }}
{{- $metadata := dict "name" "hyperfleet-drain" "labels" (include "hyperfleet.labels" .root | fromYaml) }}
{{- if not (hasPrefix "ClusterRole" .object.kind) }}{{ $_ := set $metadata "namespace" .root.Release.Namespace }}{{ end }}
{{- $_ := set $metadata "annotations" (dict "helm.sh/hook" "pre-delete" "helm.sh/hook-weight" .weight "helm.sh/hook-delete-policy" "before-hook-creation,hook-succeeded") }}
{{- toYaml (set .object "metadata" $metadata) }}
{{- end }}

{{- define "hyperfleet.config" -}}
{{- $config := mergeOverwrite (fromYaml .text) (deepCopy (.settings.config | default dict)) }}
{{- if eq .file "operator.yaml" }}{{ $_ := set $config "namespace" .root.Release.Namespace }}{{ end }}
{{- if and .adapter (not $config.adapter.name) }}{{ $_ := set $config.adapter "name" .adapter }}{{ end }}
{{- toYaml $config }}
{{- end }}

{{- /* Adds the TLS settings to the settings of the area runners: the certificate in tls.secret, or plain HTTP behind an ingress. The values of an earlier release may have no tls. */}}
{{- define "hyperfleet.serving" -}}
{{- $settings := deepCopy .settings }}
{{- $config := dict }}
{{- $tls := .root.Values.tls | default dict }}
{{- $mountPath := "/etc/hyperfleet-webhooks" }}
{{- if $tls.secret }}
{{- $_ := set $config "webhooks" (dict "certFile" (printf "%s/tls.crt" $mountPath) "keyFile" (printf "%s/tls.key" $mountPath)) }}
{{- if $tls.ca }}{{ $_ := set $config "guest" (dict "caFile" (printf "%s/ca.crt" $mountPath)) }}{{ end }}
{{- $_ := set $settings "volumes" (append ($settings.volumes | default list) (dict "name" "webhooks-tls" "secret" (dict "secretName" $tls.secret))) }}
{{- $_ := set $settings "volumeMounts" (append ($settings.volumeMounts | default list) (dict "name" "webhooks-tls" "mountPath" $mountPath "readOnly" true)) }}
{{- else if .root.Values.ingress.enabled }}
{{- $_ := set $config "webhooks" (dict "plainHTTP" true) }}
{{- end }}
{{- $_ := set $settings "config" (mergeOverwrite $config ($settings.config | default dict)) }}
{{- toYaml $settings }}
{{- end }}

{{- /* Renders the area runners as several operators that divide the namespaces (values.yaml, shards), each with a ServiceAccount that may work in its namespaces only. The argument is a dict with root and settings of the area. */}}
{{- define "hyperfleet.shards" }}
{{- $root := .root }}
{{- $settings := .settings }}
{{- $shards := $root.Values.shards }}
{{- $owners := dict }}
{{- $names := list }}
{{- include "hyperfleet.each" (dict "root" $root "path" "files/rbac/runners.yaml" "kinds" (list "Role")) }}
{{- include "hyperfleet.each" (dict "root" $root "path" "files/shards/roles.yaml") }}
{{- include "hyperfleet.each" (dict "root" $root "path" "files/base/serviceaccount.yaml" "kinds" (list "Secret" "ValidatingAdmissionPolicy" "ValidatingAdmissionPolicyBinding")) }}
{{- include "hyperfleet.each" (dict "root" $root "path" "files/base/tenancy.yaml") }}
{{- range $shard := $shards }}
{{- if has $shard.name $names }}{{ fail (printf "shards: two have the name %s" $shard.name) }}{{ end }}
{{- $names = append $names $shard.name }}
{{- range $namespace := $shard.namespaces }}
{{- with get $owners $namespace }}{{ fail (printf "shards: %s and %s both have the namespace %s" . $shard.name $namespace) }}{{ end }}
{{- $_ := set $owners $namespace $shard.name }}
{{- end }}
{{- $name := printf "hyperfleet-runners-%s" $shard.name }}
{{- $config := dict "namespaces" $shard.namespaces "shard" (dict "name" $shard.name "operators" (len $shards)) }}
{{- $own := merge (dict "config" (mergeOverwrite (deepCopy ($settings.config | default dict)) (deepCopy ($shard.config | default dict)) $config)) $settings }}
{{- range $file := list "operator" "events" }}
{{- include "hyperfleet.each" (merge (ternary (dict "namespace" "default") dict (eq $file "events")) (dict "root" $root "path" (printf "files/shards/%s.yaml" $file) "rename" (dict "hyperfleet-runners-shard" $name))) }}
{{- end }}
{{- range $namespace := $shard.namespaces }}
{{- include "hyperfleet.each" (dict "root" $root "path" "files/shards/namespace.yaml" "namespace" $namespace "rename" (dict "hyperfleet-runners-shard" $name)) }}
{{- end }}
{{- range $file := list "configmap" "deployment" "poddisruptionbudget" "service" "networkpolicy" }}
{{- include "hyperfleet.each" (dict "root" $root "path" (printf "files/base/%s.yaml" $file) "settings" $own "rename" (dict "hyperfleet-runners" $name "hyperfleet-webhooks" (printf "hyperfleet-webhooks-%s" $shard.name) "hyperfleet-metrics" (printf "hyperfleet-metrics-%s" $shard.name))) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "hyperfleet.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* Sets the values of the release in a Deployment or CronJob. It changes the object and prints nothing. */}}
{{- define "hyperfleet.pods" }}
{{- $settings := .settings }}
{{- $spec := .object.spec }}
{{- $template := $spec.template }}
{{- if eq .object.kind "CronJob" }}
{{- $template = $spec.jobTemplate.spec.template }}
{{- with $settings.schedule }}{{ $_ := set $spec "schedule" . }}{{ end }}
{{- else }}
{{- if $settings.autoscaling }}{{ $_ := unset $spec "replicas" }}{{ else }}{{ $_ := set $spec "replicas" ($settings.replicas | default $spec.replicas) }}{{ end }}
{{- end }}
{{- $pod := $template.spec }}
{{- $container := first $pod.containers }}
{{- /* Create new pods if the configuration changes, because the programs read it at their start. */}}
{{- $_ := set $template.metadata "annotations" (merge (dict "checksum/config" (print (toYaml ($settings.config | default dict)) ($settings.task | default "") | sha256sum)) ($settings.podAnnotations | default dict)) }}
{{- $_ := set $container "image" (include "hyperfleet.image" .root) }}
{{- $_ := set $container "imagePullPolicy" .root.Values.image.pullPolicy }}
{{- with .root.Values.image.pullSecrets }}{{ $_ := set $pod "imagePullSecrets" . }}{{ end }}
{{- with $settings.resources }}{{ $_ := set $container "resources" . }}{{ end }}
{{- $env := $settings.env | default list }}
{{- $names := list }}
{{- range $env }}{{ $names = append $names .name }}{{ end }}
{{- range ($container.env | default list) }}{{ if not (has .name $names) }}{{ $env = append $env . }}{{ end }}{{ end }}
{{- with $env }}{{ $_ := set $container "env" . }}{{ end }}
{{- $_ := set $container "args" (concat $container.args ($settings.args | default list)) }}
{{- $_ := set $container "volumeMounts" (concat $container.volumeMounts ($settings.volumeMounts | default list)) }}
{{- $_ := set $pod "volumes" (concat $pod.volumes ($settings.volumes | default list)) }}
{{- $_ := set $pod "containers" (concat $pod.containers ($settings.containers | default list)) }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "priorityClassName" }}
{{- with index $settings $key }}{{ $_ := set $pod $key . }}{{ end }}
{{- end }}
{{- end }}
