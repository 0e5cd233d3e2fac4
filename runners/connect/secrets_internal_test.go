// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
)

func TestSecretsAreSentWhereTheyAllowIt(t *testing.T) {
	t.Parallel()

	reach, err := httpbound.NewReach([]string{"https://git.example.com/api/v3"}, nil)
	if err != nil {
		t.Fatal(err)
	}

	const public = "api.github.com"

	for name, tt := range map[string]struct {
		list    *string
		servers []string
		allowed bool
	}{
		"nobody":                             {nil, nil, true},
		"the public server":                  {nil, []string{public}, true},
		"a listed server":                    {nil, []string{"git.example.com"}, true},
		"another port of it":                 {nil, []string{"git.example.com:8443"}, false},
		"another server":                     {nil, []string{"git.example.org"}, false},
		"one of two":                         {nil, []string{public, "git.example.org"}, false},
		"its own list":                       {new("git.example.org:8443, API.example.org:443"), []string{"git.example.org:8443", "api.example.org"}, true},
		"its own list, another port":         {new("git.example.org"), []string{"git.example.org:8443"}, false},
		"its own list without the public":    {new("git.example.org"), []string{public}, false},
		"its own list without a listed one":  {new("git.example.org"), []string{"git.example.com"}, false},
		"an empty list":                      {new(""), []string{public}, false},
		"no suffix":                          {new("example.org"), []string{"git.example.org"}, false},
		"no wildcard that somebody hopes of": {new("*"), []string{public}, false},
	} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}}
		if tt.list != nil {
			secret.Annotations = map[string]string{v1alpha1.AnnotationAllowedServers: *tt.list}
		}

		err := (&Secrets{Reach: reach}).mayBeSent(secret, Sent{Servers: tt.servers, Usual: []string{public}})
		if (err == nil) != tt.allowed || err != nil && errclass.Reason(err, "") != ReasonServerNotAllowed {
			t.Errorf("%s: error %v, want allowed %v", name, err, tt.allowed)
		}
	}
}
