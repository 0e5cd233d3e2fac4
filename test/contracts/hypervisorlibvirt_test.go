// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"maps"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// baseLibvirt is a minimal HypervisorCluster of the provider libvirt.
const baseLibvirt = `
apiVersion: hyperfleet.io/v1alpha1
kind: HypervisorCluster
metadata: {name: libvirt}
spec:
  provider: libvirt
  libvirt: {hosts: [{name: host-1, uri: "qemu+unix:///system"}]}
`

// sshHostKey is a fingerprint of an SSH host key.
const sshHostKey = "SHA256:0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"

// changeHost replaces the hosts by one with more fields.
func changeHost(fields anyMap) change {
	host := anyMap{"name": "host-1", "uri": "qemu+unix:///system"}
	maps.Copy(host, fields)

	return change{"spec.libvirt.hosts": []any{host}}
}

// and returns the change with one more field.
func and(c change, field string, value any) change {
	out := maps.Clone(c)
	out[field] = value

	return out
}

func listLibvirtRejections() []rejection {
	const (
		host    = "spec.libvirt.hosts[0]"
		foreign = "are not allowed with provider libvirt"
	)

	key := anyMap{"sshPrivateKey": newSecretRef("a", "b")}

	return []rejection{
		{"libvirt without settings", change{"spec.libvirt": removed{}}, "spec", "libvirt is required with provider libvirt"},
		{"libvirt with an endpoint", change{"spec.endpoint": "https://a.example.com/"}, "spec", foreign},
		{"libvirt with a bridge of clusters", change{"spec.defaultNetwork": "vmbr0"}, "spec", foreign},
		{
			"libvirt with a token", change{credentials: anyMap{"tokenId": newSecretRef("a", "b"), "tokenSecret": newSecretRef("a", "c")}},
			"spec", "libvirt has no API tokens and no passwords",
		},
		{"TLS without a certificate", changeHost(anyMap{"uri": "qemu+tls://a/system"}), "spec", "hosts with qemu+tls need credentials.clientCert"},
		{
			"SSH without a key", changeHost(anyMap{"uri": "qemu+ssh://a/system", "sshHostKey": sshHostKey}),
			"spec", "hosts with qemu+ssh need credentials.sshPrivateKey",
		},
		{
			"SSH without a host key", and(changeHost(anyMap{"uri": "qemu+ssh://a/system"}), credentials, key),
			host, "sshHostKey is required with qemu+ssh",
		},
		{"host key", changeHost(anyMap{"sshHostKey": "SHA256:short"}), host + ".sshHostKey", "sshHostKey must be a fingerprint"},
		{"no hosts", change{"spec.libvirt.hosts": []any{}}, "spec.libvirt.hosts", "should have at least 1 items"},
		{"name of a host", changeHost(anyMap{"name": "a b"}), host + ".name", "name must have letters, digits and '-' only"},
		{"URI without a path", changeHost(anyMap{"uri": "qemu+tls://a"}), host + ".uri", "uri must be a URI such as qemu+tls"},
		{"URI with a password", changeHost(anyMap{"uri": "qemu+ssh://a:b@c/system"}), host + ".uri", "uri must be a URI such as qemu+tls"},
		{"storage pool", changeHost(anyMap{"storagePool": "a b"}), host + ".storagePool", "storagePool must be the name of a storage pool"},
		{"network", changeHost(anyMap{"network": "a b"}), host + ".network", "network must be the name of a virtual network"},
		{"bridge", changeHost(anyMap{"bridge": "a b"}), host + ".bridge", "bridge must be the name of a bridge"},
		{"network and bridge", changeHost(anyMap{"bridge": "br0", "network": "default"}), host, "choose at most one of network and bridge"},
		{"memory without a unit", changeHost(anyMap{"maxMemory": "56GB"}), host + ".maxMemory", pattern},
		{
			"address of a device", changeHost(anyMap{"devices": []any{anyMap{"name": "gpu", "addresses": []any{"01:00.0"}}}}),
			host + ".devices[0].addresses", "addresses must be PCI addresses such as 0000:01:00.0",
		},
		{"type of domains", change{"spec.libvirt.domainType": "xen"}, "spec.libvirt.domainType", `supported values: "kvm", "qemu"`},
	}
}

// changeLibvirtTemplate replaces a template's source.
func changeLibvirtTemplate(source anyMap) change {
	return change{"spec.template": anyMap{"libvirt": source}}
}

func listLibvirtTemplateRejections() []rejection {
	const source = "spec.template.libvirt"

	return []rejection{
		{"no libvirt source", changeLibvirtTemplate(anyMap{}), source, "choose one of libvirt.volume, libvirt.domain and libvirt.tags"},
		{
			"two libvirt sources", changeLibvirtTemplate(anyMap{"volume": "a", "domain": "b"}), source,
			"choose one of libvirt.volume, libvirt.domain and libvirt.tags",
		},
		{"volume with a slash", changeLibvirtTemplate(anyMap{"volume": "../a"}), source + ".volume", "libvirt.volume must be the name of a volume"},
		{"domain with a blank", changeLibvirtTemplate(anyMap{"domain": "a b"}), source + ".domain", "libvirt.domain must be the name of a domain"},
		{"tag with a comma", changeLibvirtTemplate(anyMap{"tags": []any{"a,b"}}), source + ".tags", "libvirt.tags must have letters"},
		{
			"VLAN on libvirt", and(changeLibvirtTemplate(anyMap{"volume": "a"}), "spec.network", anyMap{"vlan": int64(7)}),
			"spec", "network.vlan is not allowed with libvirt",
		},
	}
}

func TestLibvirtIsAccepted(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		base   string
		change change
	}{
		"least cluster": {baseLibvirt, nil},
		"all fields": {baseLibvirt, change{
			"spec.libvirt": anyMap{"domainType": "kvm", "hosts": []any{
				anyMap{"name": "a", "uri": "qemu+tls://a.example.com/system", "network": "default", "maxCPU": int64(32), "maxMemory": "56Gi"},
				anyMap{"name": "b", "uri": "qemu+ssh://ci@[2001:db8::1]:2222/system", "sshHostKey": sshHostKey, "bridge": "br0"},
				anyMap{"name": "c", "uri": "qemu+unix:///session?socket=/run/user/1/s", "storagePool": "fast", "maxStoragePercent": int64(80)},
			}},
			credentials: anyMap{
				"clientCert": newSecretRef("a", "b"), "clientKey": newSecretRef("a", "c"), "sshPrivateKey": newSecretRef("a", "d"),
			},
		}},
		"volume": {baseTemplate, changeLibvirtTemplate(anyMap{"volume": "runner.qcow2", "linkedClone": false})},
		"domain": {baseTemplate, changeLibvirtTemplate(anyMap{"domain": "runner"})},
		"tags":   {baseTemplate, changeLibvirtTemplate(anyMap{"tags": []any{"ubuntu", "24.04"}})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if err := newStrictClient().Create(t.Context(), c.change.apply(t, c.base), client.DryRunAll); err != nil {
				t.Error(err)
			}
		})
	}
}
