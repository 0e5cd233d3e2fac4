// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kit_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

func TestSecretAllowsServers(t *testing.T) {
	t.Parallel()

	egress, err := bounds.NewEgressPolicy([]string{"https://git.example.com/api/v3"}, nil)
	if err != nil {
		t.Fatal(err)
	}

	const public = "api.github.com"

	for name, tt := range map[string]struct {
		list    *string
		servers []string
		allowed bool
	}{
		"nobody":                            {nil, nil, true},
		"the public server":                 {nil, []string{public}, true},
		"a listed server":                   {nil, []string{"git.example.com"}, true},
		"another port of it":                {nil, []string{"git.example.com:8443"}, false},
		"another server":                    {nil, []string{"git.example.org"}, false},
		"one of two":                        {nil, []string{public, "git.example.org"}, false},
		"its own list":                      {new("git.example.org:8443, API.example.org:443"), []string{"git.example.org:8443", "api.example.org"}, true},
		"its own list, another port":        {new("git.example.org"), []string{"git.example.org:8443"}, false},
		"its own list without the public":   {new("git.example.org"), []string{public}, false},
		"its own list without a listed one": {new("git.example.org"), []string{"git.example.com"}, false},
		"an empty list":                     {new(""), []string{public}, false},
		"no suffix":                         {new("example.org"), []string{"git.example.org"}, false},
		"no wildcards":                      {new("*"), []string{public}, false},
	} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}}
		if tt.list != nil {
			secret.Annotations = map[string]string{v1alpha1.AnnotationAllowedServers: *tt.list}
		}

		err := credential.CheckDestination(secret, credential.Destination{Servers: tt.servers, DefaultServers: []string{public}}, egress)
		if (err == nil) != tt.allowed || err != nil && errclass.ReasonOf(err, "") != credential.ReasonServerNotAllowed {
			t.Errorf("%s: error %v, want allowed %v", name, err, tt.allowed)
		}
	}
}

func TestDestinationsOfSecrets(t *testing.T) {
	t.Parallel()

	const kubeconfig = `{apiVersion: v1, kind: Config, current-context: b,
contexts: [{name: a, context: {cluster: a}}, {name: b, context: {cluster: b}}],
clusters: [{name: a, cluster: {server: "https://a.example.com"}}, {name: b, cluster: {server: "https://B.example.com:6443"}}]}`

	for name, tt := range map[string]struct {
		to   credential.Destination
		want []string
	}{
		"nobody":                 {credential.NewDestination(""), nil},
		"an address and a port":  {credential.NewDestination("192.0.2.1:22"), []string{"192.0.2.1:22"}},
		"a URL":                  {credential.DestinationOfURL("https://PVE.example.com/api2/json"), []string{"pve.example.com"}},
		"no URL":                 {credential.DestinationOfURL("pve"), nil},
		"the current context":    {credential.DestinationOfKubeconfig([]byte(kubeconfig)), []string{"b.example.com:6443"}},
		"no kubeconfig":          {credential.DestinationOfKubeconfig([]byte("{")), nil},
		"an unusable kubeconfig": {credential.DestinationOfKubeconfig([]byte("{}")), nil},
	} {
		if !slices.Equal(tt.to.Servers, tt.want) || !slices.Equal(tt.to.DefaultServers, tt.want) {
			t.Errorf("%s: %+v, want %v", name, tt.to, tt.want)
		}
	}
}
