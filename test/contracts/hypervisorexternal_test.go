// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// baseExternal is a minimal HypervisorCluster of the provider external.
const baseExternal = `
apiVersion: hyperfleet.io/v1alpha1
kind: HypervisorCluster
metadata: {name: external}
spec:
  provider: external
  external: {address: "unix:///run/providers/example.sock"}
`

func listExternalRejections() []rejection {
	const (
		address = "spec.external.address"
		form    = "external.address must be unix:///PATH"
	)

	return []rejection{
		{"external without settings", change{"spec.external": removed{}}, "spec", "external is required with provider external"},
		{"external with an endpoint", change{"spec.endpoint": "https://a.example.com/"}, "spec", "endpoint is not allowed with provider external"},
		{
			"external with a token", change{credentials: anyMap{"tokenId": newSecretRef("a", "b"), "tokenSecret": newSecretRef("a", "c")}},
			"spec", "only credentials.clientCert and clientKey are used",
		},
		{
			"external without verification", change{"spec.tls": anyMap{"insecureSkipVerify": true}},
			"spec", "tls.insecureSkipVerify is not allowed with provider external",
		},
		{
			"address without a certificate", change{"spec.external": anyMap{"address": "provider.example.com:9443"}},
			"spec", "needs credentials.clientCert",
		},
		{"address without a port", change{"spec.external": anyMap{"address": "provider.example.com"}}, address, form},
		{"URL as address", change{"spec.external": anyMap{"address": "https://provider.example.com:9443"}}, address, form},
		{"relative socket", change{"spec.external": anyMap{"address": "unix:run/a.sock"}}, address, form},
		{"socket of another folder", change{"spec.external": anyMap{"address": "unix:///run/../etc/a.sock"}}, address, form},
		{"no address", change{"spec.external": anyMap{"address": ""}}, address, "should be at least 1 chars long"},
		{
			"long setting", change{"spec.external": anyMap{"address": "unix:///run/a.sock", "settings": anyMap{"a": strings.Repeat("x", 1025)}}},
			"spec.external.settings", "external.settings must have keys of at most 63",
		},
	}
}

// changeExternalTemplate replaces a template's source.
func changeExternalTemplate(source anyMap) change {
	return change{"spec.template": anyMap{"external": source}}
}

func listExternalTemplateRejections() []rejection {
	return []rejection{
		{"no name", changeExternalTemplate(anyMap{"name": ""}), "spec.template.external.name", "should be at least 1 chars long"},
		{
			"two hypervisors", change{"spec.template.external": anyMap{"name": "ubuntu"}}, "spec.template",
			"choose one of template.proxmox, template.kubevirt, template.libvirt and template.external",
		},
	}
}

func TestExternalIsAccepted(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		base   string
		change change
	}{
		"least cluster": {baseExternal, nil},
		"address and settings": {baseExternal, change{
			"spec.external": anyMap{"address": "[2001:db8::1]:9443", "settings": anyMap{"region": "a"}},
			credentials:     anyMap{"clientCert": newSecretRef("a", "b"), "clientKey": newSecretRef("a", "c")},
		}},
		"template": {baseTemplate, changeExternalTemplate(anyMap{"name": "ubuntu", "storage": "fast", "linkedClone": false})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if err := newStrictClient().Create(t.Context(), c.change.apply(t, c.base), client.DryRunAll); err != nil {
				t.Error(err)
			}
		})
	}
}
