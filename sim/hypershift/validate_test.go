// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/sim/hypershift"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// TestViolations has a row for each object that HyperShift or MetalLB rejects, though
// the schema does.
func TestViolations(t *testing.T) {
	set := func(value any, path ...string) func(*unstructured.Unstructured) {
		return func(o *unstructured.Unstructured) {
			if err := unstructured.SetNestedField(o.Object, value, path...); err != nil {
				t.Error(err)
			}
		}
	}
	cidr := func(text string) []any { return []any{map[string]any{"cidr": text}} }

	tests := map[string]struct {
		change   func(*unstructured.Unstructured)
		cond     string
		want     string
		wantText string
	}{
		"no pull secret": {
			set("missing", "spec", "pullSecret", "name"), "ValidReleaseImage", "False SecretNotFound", "not found",
		},
		"pull secret without logins": {
			set("empty", "spec", "pullSecret", "name"), "ValidReleaseImage", "False SecretNotFound", "has no auths",
		},
		"image without version": {
			set("quay.io/openshift-release-dev/ocp-release:latest", "spec", "release", "image"),
			"ValidReleaseImage", "False InvalidImage", "no release in",
		},
		"version too new": {
			set("quay.io/openshift-release-dev/ocp-release:4.99.0", "spec", "release", "image"),
			"ValidReleaseImage", "False InvalidImage", "latest version supported",
		},
		"version too old": {
			set("quay.io/openshift-release-dev/ocp-release:4.9.0", "spec", "release", "image"),
			"ValidReleaseImage", "False InvalidImage", "minimum version supported",
		},
		"no SSH key": {
			set("missing", "spec", "sshKey", "name"), "ValidConfiguration", "False InvalidConfiguration", "not found",
		},
		"SSH key under another name": {
			set("pull", "spec", "sshKey", "name"), "ValidConfiguration", "False InvalidConfiguration", "id_rsa.pub",
		},
		"short encryption key": {
			set(map[string]any{"type": "aescbc", "aescbc": map[string]any{"activeKey": map[string]any{"name": "short"}}},
				"spec", "secretEncryption"),
			"ValidConfiguration", "False InvalidConfiguration", "must be 32 bytes long",
		},
		"networks that overlap": {
			set(cidr("10.133.0.0/16"), "spec", "networking", "serviceNetwork"),
			"ValidConfiguration", "False InvalidConfiguration", "overlaps with",
		},
	}

	namespace := env.Namespace(t)
	sim := startSim(t, hypershift.Options{WithoutMetalLB: true})
	createSecrets(t, namespace)
	createObjects(t,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "short"}, StringData: map[string]string{"key": "k"}},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "empty"},
			StringData: map[string]string{corev1.DockerConfigJsonKey: `{"auths":{}}`},
		})

	for name, test := range tests {
		cluster := newHostedCluster(namespace, toObjectName(name), false)
		test.change(cluster)
		createObjects(t, cluster)
	}

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			name := toObjectName(name)
			waitForCondition(t, hostedKind(), namespace, name, test.cond, test.want)
			waitForCondition(t, hostedKind(), namespace, name, "Progressing", "False Blocked")

			if !slices.ContainsFunc(sim.Violations(), func(v hypershift.Violation) bool {
				return strings.HasSuffix(v.Object, "/"+name) && strings.Contains(v.Message, test.wantText)
			}) {
				t.Errorf("violations are %v, want one of %s with %q", sim.Violations(), name, test.wantText)
			}

			if err := env.Client.Delete(t.Context(), newObject(hostedKind(), namespace, name, nil)); err != nil {
				t.Fatal(err)
			}

			timing.WaitUntil(t, "it is deleted", func() bool { return getObject(t, hostedKind(), namespace, name) == nil })
		})
	}

	sim.Forgive("")
}

// toObjectName returns a name for the object of a row.
func toObjectName(row string) string { return strings.ReplaceAll(strings.ToLower(row), " ", "-") }

// MetalLB's webhook rejects these pools.
func TestPoolViolations(t *testing.T) {
	sim := startSim(t, hypershift.Options{})
	namespace := env.Namespace(t)

	createAddressPool(t, namespace+"-a", "198.51.100.0/28")
	createAddressPool(t, namespace+"-b", "198.51.100.8/32")

	elsewhere := newObject(newGVK("metallb.io", "v1beta1", "IPAddressPool"), namespace, "elsewhere", map[string]any{
		"addresses": []any{"203.0.113.0/28"},
	})
	createObjects(t, elsewhere)

	for _, want := range []string{"overlaps with already defined CIDR", "resource must be created in metallb-system namespace"} {
		timing.WaitUntil(t, want, func() bool {
			return slices.ContainsFunc(sim.Violations(), func(v hypershift.Violation) bool { return strings.Contains(v.Message, want) })
		})
	}

	if err := client.IgnoreNotFound(env.Client.Delete(t.Context(), elsewhere)); err != nil {
		t.Fatal(err)
	}

	sim.Forgive("")
}
