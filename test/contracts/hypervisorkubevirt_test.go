// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"maps"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// baseKubeVirt is a minimal HypervisorCluster of the provider kubevirt.
const baseKubeVirt = `
apiVersion: hyperfleet.io/v1alpha1
kind: HypervisorCluster
metadata: {name: kubevirt}
spec:
  provider: kubevirt
  kubevirt: {namespace: machines}
`

// listOtherProviderRejections has the rejections of a cluster of the provider proxmox.
func listOtherProviderRejections() []rejection {
	return []rejection{
		{"Proxmox without endpoint", change{"spec.endpoint": removed{}}, "spec", "provider proxmox needs endpoint and credentials"},
		{"Proxmox without credentials", change{credentials: removed{}}, "spec", "provider proxmox needs endpoint and credentials"},
		{"SSH key for Proxmox", change{"spec.credentials.sshPrivateKey": newSecretRef("a", "b")}, "spec", "sshPrivateKey is only allowed with provider libvirt"},
		{"Proxmox with KubeVirt's settings", change{"spec.kubevirt": anyMap{"namespace": "a"}}, "spec", "kubevirt is required with provider kubevirt"},
	}
}

func listKubeVirtRejections() []rejection {
	const (
		settings = "spec.kubevirt"
		foreign  = "are not allowed with provider kubevirt"
	)

	return []rejection{
		{"KubeVirt without settings", change{settings: removed{}}, "spec", "kubevirt is required with provider kubevirt"},
		{"KubeVirt with an endpoint", change{"spec.endpoint": "https://a.example.com/"}, "spec", foreign},
		{
			"KubeVirt with a token", change{credentials: anyMap{"tokenId": newSecretRef("a", "b"), "tokenSecret": newSecretRef("a", "c")}},
			"spec", foreign,
		},
		{"KubeVirt with a share of memory", change{"spec.limits": anyMap{"memoryPercent": int64(90)}}, "spec", "limits.memoryPercent is only allowed with provider proxmox"},
		{"KubeVirt with a bridge", change{"spec.defaultNetwork": "vmbr0"}, "spec", foreign},
		{"namespace with a slash", change{"spec.kubevirt.namespace": "a/b"}, "spec.kubevirt.namespace", "must be the name of a namespace"},
		{"no namespace", change{"spec.kubevirt.namespace": removed{}}, "spec.kubevirt.namespace", "Required value"},
		{
			"kubeconfig's key", change{"spec.kubevirt.kubeconfigSecretRef": anyMap{"name": "a", "key": "a key"}},
			"kubeconfigSecretRef.key", "key must be a key of a Secret",
		},
		{
			"kubeconfig's name", change{"spec.kubevirt.kubeconfigSecretRef": anyMap{"name": "A B", "key": "kubeconfig"}},
			"kubeconfigSecretRef.name", "name must be the name of a Secret",
		},
		{
			"kubeconfig's namespace", change{"spec.kubevirt.kubeconfigSecretRef": anyMap{"name": "a", "key": "b", "namespace": "A/B"}},
			"kubeconfigSecretRef.namespace", "namespace must be the name of a namespace",
		},
		{"storage class", change{"spec.kubevirt.storageClassName": "A B"}, settings, "must be the name of a storage class"},
		{"network of three parts", change{"spec.kubevirt.network": "a/b/c"}, settings, "must be the name of a NetworkAttachmentDefinition"},
		{"label without a name", change{"spec.kubevirt.nodeSelector": anyMap{"a/": "b"}}, settings, "must have valid Kubernetes keys"},
		{"label's value", change{"spec.kubevirt.nodeSelector": anyMap{"a": "b c"}}, settings, "must have values of letters"},
		{"label's length", change{"spec.kubevirt.nodeSelector": anyMap{"a": strings.Repeat("b", 64)}}, settings, "at most 63 characters"},
	}
}

// changeKubeVirtTemplate replaces a template's source.
func changeKubeVirtTemplate(source anyMap, more ...change) change {
	out := change{"spec.template": anyMap{"kubevirt": source}}
	for _, c := range more {
		maps.Copy(out, c)
	}

	return out
}

func listKubeVirtTemplateRejections() []rejection {
	const (
		spec     = "spec"
		template = "spec.template"
		source   = "spec.template.kubevirt"
	)

	disk := anyMap{"containerDisk": anyMap{"image": "quay.io/containerdisks/debian:13"}}
	data := anyMap{"dataSource": anyMap{"name": "debian"}}
	with := func(base anyMap, key string, value any) anyMap {
		out := anyMap{key: value}
		maps.Copy(out, base)

		return out
	}

	return []rejection{
		{"both hypervisors", change{"spec.template.kubevirt": disk}, template, "choose one of template.proxmox, template.kubevirt, template.libvirt and template.external"},
		{"no hypervisor", change{template: anyMap{}}, template, "choose one of template.proxmox, template.kubevirt, template.libvirt and template.external"},
		{"two sources", changeKubeVirtTemplate(with(disk, "dataSource", anyMap{"name": "a"})), source, "choose one of kubevirt.containerDisk"},
		{"no source", changeKubeVirtTemplate(anyMap{}), source, "choose one of kubevirt.containerDisk"},
		{
			"storage for a containerDisk", changeKubeVirtTemplate(with(disk, "storageClassName", "fast")), source,
			"kubevirt.storageClassName is only allowed with dataSource",
		},
		{"storage class", changeKubeVirtTemplate(with(data, "storageClassName", "A B")), source, "must be the name of a storage class"},
		{"network", changeKubeVirtTemplate(with(data, "network", "a b")), source, "must be the name of a NetworkAttachmentDefinition"},
		{"image with a blank", changeKubeVirtTemplate(anyMap{"containerDisk": anyMap{"image": "a b"}}), source, "must be the name of an image"},
		{"bridge on KubeVirt", changeKubeVirtTemplate(disk, change{"spec.network": anyMap{"bridge": "vmbr0"}}), spec, "are not allowed with KubeVirt"},
		{"VLAN on KubeVirt", changeKubeVirtTemplate(disk, change{"spec.network": anyMap{"vlan": int64(7)}}), spec, "are not allowed with KubeVirt"},
		{
			"program on a cloud-init ISO of 1 MiB", changeKubeVirtTemplate(disk, change{"spec.bootstrap.delivery": "iso"}), spec,
			"bootstrap.delivery iso is not allowed with KubeVirt",
		},
		{
			"size of a containerDisk", changeKubeVirtTemplate(disk, change{"spec.resources.disk": "50Gi"}), spec,
			"resources.disk is not allowed with a containerDisk",
		},
	}
}

func TestKubeVirtIsAccepted(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		base   string
		change change
	}{
		"least cluster": {baseKubeVirt, nil},
		"all fields": {baseKubeVirt, change{"spec.kubevirt": anyMap{
			"namespace": "machines", "kubeconfigSecretRef": anyMap{"name": "east", "key": "kubeconfig"},
			"storageClassName": "ceph-rbd", "network": "networks/vlan20", "nodeSelector": anyMap{"example.com/ci": "true"},
		}}},
		"image":  {baseTemplate, changeKubeVirtTemplate(anyMap{"containerDisk": anyMap{"image": "r.example.com:5000/a/b@sha256:00"}})},
		"source": {baseTemplate, changeKubeVirtTemplate(anyMap{"dataSource": anyMap{"name": "debian", "namespace": "images"}})},
		"volume": {baseTemplate, changeKubeVirtTemplate(anyMap{
			"persistentVolumeClaim": anyMap{"name": "debian"}, "network": "vlan20", "storageClassName": "fast",
		}, change{"spec.resources.disk": "50Gi"})},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if err := newStrictClient().Create(t.Context(), c.change.apply(t, c.base), client.DryRunAll); err != nil {
				t.Error(err)
			}
		})
	}
}
