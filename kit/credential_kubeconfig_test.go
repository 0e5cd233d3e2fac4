// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kit_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/credential"
)

// A kubeconfig that is not self-contained is rejected, and the error does not quote its content.
func TestKubeconfigIsSelfContained(t *testing.T) {
	t.Parallel()

	const frame = `{apiVersion: v1, kind: Config, current-context: CONTEXT, contexts: [{name: a, context: {cluster: a, user: a}}],
		clusters: [{name: a, cluster: {server: "https://192.0.2.1:6443"MORE}}], users: [{name: a, user: {USER}}]}`

	for name, tt := range map[string]struct{ context, cluster, user, says, server string }{
		"a token":          {"a", "", "token: s3cr3t", "", "https://192.0.2.1:6443"},
		"no token":         {"a", "", "", "", "https://192.0.2.1:6443"},
		"a program":        {"a", "", `exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/sh, interactiveMode: Never}`, "runs a program", "https://192.0.2.1:6443"},
		"a plugin":         {"a", "", `auth-provider: {name: gcp}`, "runs a program", "https://192.0.2.1:6443"},
		"a token file":     {"a", "", "tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token", "refers to files", "https://192.0.2.1:6443"},
		"a key file":       {"a", "", "client-certificate: /a, client-key: /b", "refers to files", "https://192.0.2.1:6443"},
		"a CA file":        {"a", ", certificate-authority: /etc/passwd", "token: s3cr3t", "refers to a file", "https://192.0.2.1:6443"},
		"no kubeconfig":    {"a", "", "s3cr3t: [", "not a kubeconfig", ""},
		"another context":  {"b", "", "token: s3cr3t", "current-context", ""},
		"no context named": {`""`, "", "token: s3cr3t", "current-context", ""},
	} {
		text := []byte(strings.NewReplacer("CONTEXT", tt.context, "MORE", tt.cluster, "USER", tt.user).Replace(frame))

		config, err := credential.RESTConfig(text)

		switch {
		case tt.says == "" && (err != nil || config.Host != tt.server):
			t.Errorf("%s: %v, %v", name, config, err)
		case tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "s3cr3t")):
			t.Errorf("%s: want an error that contains %q, got %v", name, tt.says, err)
		}

		server := strings.Join(credential.DestinationOfKubeconfig(text).Servers, ",")
		if "https://"+server != cmp.Or(tt.server, "https://") {
			t.Errorf("%s: server %q, want %q", name, server, tt.server)
		}
	}
}

// Only administrators may configure a proxy, because any server could be called as a proxy.
func TestTenantProxiesAreRejected(t *testing.T) {
	t.Parallel()

	for url, wanted := range map[string]bool{
		"": true, "http://127.0.0.1:8080": false, "https://proxy.example.com": false, "socks5://192.0.2.7:1080": false,
	} {
		text := fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],
			clusters: [{name: a, cluster: {server: "https://192.0.2.1:6443", proxy-url: %q}}], users: [{name: a, user: {token: s3cr3t}}]}`, url)

		if _, err := credential.RESTConfig(text); err != nil {
			t.Errorf("an administrator's, proxy %q: %v", url, err)
		}

		_, err := credential.RESTConfigWithoutProxy(text)
		if wanted != (err == nil) || err != nil && !strings.Contains(err.Error(), "remove proxy-url") {
			t.Errorf("proxy %q: %v", url, err)
		}
	}

	if _, err := credential.RESTConfigWithoutProxy([]byte("s3cr3t: [")); err == nil {
		t.Error("an invalid kubeconfig is accepted")
	}
}
