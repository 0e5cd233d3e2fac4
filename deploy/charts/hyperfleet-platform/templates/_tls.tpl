{{- /* Adds the TLS settings with the certificate in tls.secret to the settings of the API, or, if client is true, of a program that calls the API. The argument is a dict with root, settings and client. A client gets no private key. */}}
{{- define "hyperfleet.api" -}}
{{- $settings := deepCopy (.settings | default dict) }}
{{- $tls := .root.Values.tls | default dict }}
{{- $mountPath := "/etc/hyperfleet-api-tls" }}
{{- if $tls.secret }}
{{- $config := dict "server" (dict "tls_cert_file" (printf "%s/tls.crt" $mountPath) "tls_key_file" (printf "%s/tls.key" $mountPath)) }}
{{- $secret := dict "secretName" $tls.secret }}
{{- if .client }}
{{- $api := dict "base_url" "https://hyperfleet-api:8000" }}
{{- if $tls.ca }}{{ $_ := set $api "ca_file" (printf "%s/ca.crt" $mountPath) }}{{ end }}
{{- $config = dict "clients" (dict "hyperfleet_api" $api) }}
{{- $_ := set $secret "items" (list (dict "key" "ca.crt" "path" "ca.crt")) }}
{{- end }}
{{- if or (not .client) $tls.ca }}
{{- $_ := set $settings "volumes" (append ($settings.volumes | default list) (dict "name" "api-tls" "secret" $secret)) }}
{{- $_ := set $settings "volumeMounts" (append ($settings.volumeMounts | default list) (dict "name" "api-tls" "mountPath" $mountPath "readOnly" true)) }}
{{- end }}
{{- $_ := set $settings "config" (mergeOverwrite $config ($settings.config | default dict)) }}
{{- end }}
{{- toYaml $settings }}
{{- end }}
