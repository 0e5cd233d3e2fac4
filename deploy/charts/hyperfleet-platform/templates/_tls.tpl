{{- /* Settings of the API, which serves by the certificate of tls.secret; or, with client, of a program that calls it: dict of root, settings and client. A client gets no key. */}}
{{- define "hyperfleet.api" -}}
{{- $settings := deepCopy (.settings | default dict) }}
{{- $tls := .root.Values.tls | default dict }}
{{- $at := "/etc/hyperfleet-api-tls" }}
{{- if $tls.secret }}
{{- $config := dict "server" (dict "tls_cert_file" (printf "%s/tls.crt" $at) "tls_key_file" (printf "%s/tls.key" $at)) }}
{{- $secret := dict "secretName" $tls.secret }}
{{- if .client }}
{{- $api := dict "base_url" "https://hyperfleet-api:8000" }}
{{- if $tls.ca }}{{ $_ := set $api "ca_file" (printf "%s/ca.crt" $at) }}{{ end }}
{{- $config = dict "clients" (dict "hyperfleet_api" $api) }}
{{- $_ := set $secret "items" (list (dict "key" "ca.crt" "path" "ca.crt")) }}
{{- end }}
{{- if or (not .client) $tls.ca }}
{{- $_ := set $settings "volumes" (append ($settings.volumes | default list) (dict "name" "api-tls" "secret" $secret)) }}
{{- $_ := set $settings "volumeMounts" (append ($settings.volumeMounts | default list) (dict "name" "api-tls" "mountPath" $at "readOnly" true)) }}
{{- end }}
{{- $_ := set $settings "config" (mergeOverwrite $config ($settings.config | default dict)) }}
{{- end }}
{{- toYaml $settings }}
{{- end }}
