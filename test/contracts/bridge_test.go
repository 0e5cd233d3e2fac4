// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	configv1 "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

const baseBridge = `
apiVersion: dpf.hcp.bridge.com/v1alpha1
kind: DPFHCPBridge
metadata: {name: base, namespace: default}
spec:
  dpuClusterRef: {name: dpu, namespace: dpf-operator-system}
  baseDomain: clusters.example.com
  ocpReleaseImage: quay.io/openshift-release-dev/ocp-release:4.15.0-x86_64
  sshKeySecretRef: {name: ssh-key}
  pullSecretRef: {name: pull-secret}
  etcdStorageClass: ceph-rbd
  controlPlaneAvailabilityPolicy: HighlyAvailable
  infrastructureAvailabilityPolicy: HighlyAvailable
  exposeThroughLoadBalancer: true
  metalLBVirtualIP: 192.168.1.100
  clusterType: dpf-production
`

func listBridgeRejections() []rejection {
	const (
		required = "Required value"
		domain   = "baseDomain must be a DNS domain in lower case with at least one dot, such as clusters.example.com"
		release  = "ocpReleaseImage must be the name of an image such as quay.io/openshift-release-dev/ocp-release"
		category = "clusterType must be lower-case letters, digits and '-', with a letter or digit first and last"
		image    = "spec.ocpReleaseImage"
		address  = "spec.metalLBVirtualIP"
		vip      = "metalLBVirtualIP must be an IPv4 or IPv6 address in its shortest form, or one of each"
		name     = "name must have at most 54 characters and no dot"
	)

	row := func(why, path string, value any, want string) rejection {
		return rejection{why, change{path: value}, path, want}
	}

	rows := []rejection{
		{"name too long", change{"metadata.name": strings.Repeat("a", 55)}, "DPFHCPBridge", name},
		{"name with a dot", change{"metadata.name": "a.b"}, "DPFHCPBridge", name},
		{
			"domain too long for the name", change{"spec.baseDomain": strings.Repeat(strings.Repeat("a", 60)+".", 4) + "example"},
			"DPFHCPBridge", "name and baseDomain together must have at most 245 characters",
		},
		{
			"load balancer without address", change{address: removed{}}, "spec",
			"metalLBVirtualIP is required when exposeThroughLoadBalancer is true",
		},
		{"load balancer with empty address", change{address: ""}, "spec", "metalLBVirtualIP is required when"},
		{
			"node port with address", change{"spec.exposeThroughLoadBalancer": false}, "spec",
			"metalLBVirtualIP must be empty when exposeThroughLoadBalancer is false",
		},
		row("address beyond a byte", address, "192.168.1.256", vip),
		row("address of three bytes", address, "192.168.1", vip),
		row("address with leading zero", address, "192.168.1.010", vip),
		row("IPv6 address in long", address, "fd00:0::1", vip),
		row("IPv6 address in capitals", address, "FD00::1", vip),
		row("IPv6 address with a zone", address, "fe80::1%eth0", vip),
		row("IPv4 address in IPv6", address, "::ffff:10.0.0.1", vip),
		row("two addresses of a family", address, "10.0.0.1,10.0.0.2", vip),
		row("two IPv6 addresses", address, "fd00::1,fd00::2", vip),
		row("three addresses", address, "10.0.0.1,fd00::1,fd00::2", vip),
		row("addresses with a blank", address, "10.0.0.1, fd00::1", vip),
		row("address and a comma", address, "10.0.0.1,", vip),
		row("address with length", address, "10.0.0.1/32", vip),
		row("domain in capitals", "spec.baseDomain", "Clusters.example.com", domain),
		row("domain that ends in capitals", "spec.baseDomain", "clusters.example.COM", domain),
		row("domain of one word", "spec.baseDomain", "localhost", domain),
		row("domain with a dot at its end", "spec.baseDomain", "example.com.", domain),
		row("domain with two dots", "spec.baseDomain", "a..example.com", domain),
		row("domain that begins with a hyphen", "spec.baseDomain", "-a.example.com", domain),
		row("provisioning within seconds", "spec.provisioningTimeout", "30s", "provisioningTimeout must be a time of at least one minute"),
		row("provisioning without a unit", "spec.provisioningTimeout", "30", "provisioningTimeout must be a time of at least one minute"),
		row("image with a blank", image, "quay.io/a b:1.2.3", release),
		row("image with a scheme", image, "https://quay.io/a?b:1.2.3", release),
		row("image in capitals", image, "Quay.io/openshift:4.15.0", release),
		row("DPUs' image in capitals", "spec.dpuIgnition", anyMap{"flavorName": "a", "machineOSURL": "Quay.io/os:4.19.0"}, "machineOSURL must be the name of an image such as"),
		row("type in capitals", "spec.clusterType", "Production", category),
		row("type with a hyphen at its end", "spec.clusterType", "dpf-", category),
		row("type with a dot", "spec.clusterType", "dpf.dev", category),
		row("word for a policy", "spec.controlPlaneAvailabilityPolicy", "HA", "Unsupported value"),
		row("word for a choice", "spec.exposeThroughLoadBalancer", "yes", "must be of type boolean"),
		row("cluster without namespace", "spec.dpuClusterRef.namespace", removed{}, required),
		row("cluster without name", "spec.dpuClusterRef.name", removed{}, required),
		row("SSH key without name", "spec.sshKeySecretRef", anyMap{}, required),
		row("pull secret without name", "spec.pullSecretRef", anyMap{}, required),
	}

	for _, field := range []string{
		"dpuClusterRef", "baseDomain", "ocpReleaseImage", "sshKeySecretRef", "pullSecretRef", "etcdStorageClass",
		"controlPlaneAvailabilityPolicy", "infrastructureAvailabilityPolicy", "exposeThroughLoadBalancer", "clusterType",
	} {
		rows = append(rows, row("no "+field, "spec."+field, removed{}, required))
	}

	return slices.Concat(rows, listBridgeNetworkRejections(), listBridgePlacementRejections())
}

// changeNetworks sets a bridge's networks: of pods, of Services, and of machines if it has one.
func changeNetworks(cluster, service string, machine ...string) change {
	all := anyMap{"clusterNetwork": list{anyMap{"cidr": cluster}}, "serviceNetwork": list{anyMap{"cidr": service}}}
	if len(machine) > 0 {
		all["machineNetwork"] = list{anyMap{"cidr": machine[0]}}
	}

	return change{"spec.networking": all}
}

func listBridgeNetworkRejections() []rejection {
	const (
		networking = "spec.networking"
		form       = "write a network without bits beyond its prefix"
	)

	pair := func(field, a, b string) change {
		return change{networking: anyMap{field: list{anyMap{"cidr": a}, anyMap{"cidr": b}}}}
	}
	prefix := func(cidr string, length int64) change {
		return change{networking: anyMap{"clusterNetwork": list{anyMap{"cidr": cidr, "hostPrefix": length}}}}
	}

	return []rejection{
		{"network as text", changeNetworks("all", "10.5.0.0/16"), networking + ".clusterNetwork[0].cidr", form},
		{"network of one address", changeNetworks("10.4.0.0", "10.5.0.0/16"), networking + ".clusterNetwork[0].cidr", form},
		{"network with bits", changeNetworks("10.4.0.0/16", "10.5.0.1/16"), networking + ".serviceNetwork[0].cidr", form},
		{"pods in services", changeNetworks("10.5.1.0/24", "10.5.0.0/16"), networking, "clusterNetwork and serviceNetwork must not overlap"},
		{"services in pods", changeNetworks("10.4.0.0/15", "10.5.0.0/16"), networking, "clusterNetwork and serviceNetwork must not overlap"},
		{
			"services in the default of pods", change{networking: anyMap{"serviceNetwork": list{anyMap{"cidr": "10.133.0.0/16"}}}},
			networking, "clusterNetwork and serviceNetwork must not overlap",
		},
		{
			"machines in pods", changeNetworks("10.4.0.0/16", "10.5.0.0/16", "10.4.7.0/24"), networking,
			"clusterNetwork and machineNetwork must not overlap",
		},
		{
			"pods in machines", changeNetworks("10.4.7.0/24", "10.5.0.0/16", "10.4.0.0/16"), networking,
			"clusterNetwork and machineNetwork must not overlap",
		},
		{
			"machines in services", changeNetworks("fd01::/48", "fd02::/64", "fd02::5:0/112"), networking,
			"serviceNetwork and machineNetwork must not overlap",
		},
		{
			"services in machines", changeNetworks("fd01::/48", "fd02::5:0/112", "fd02::/64"), networking,
			"serviceNetwork and machineNetwork must not overlap",
		},
		{"pods and services of two families", changeNetworks("fd01::/48", "10.5.0.0/16"), networking, "must be of the same address families"},
		{"two networks of one family", pair("machineNetwork", "10.6.0.0/16", "10.7.0.0/16"), networking, "one network of each address family"},
		{"three networks", change{networking: anyMap{"machineNetwork": list{
			anyMap{"cidr": "10.6.0.0/16"}, anyMap{"cidr": "fd03::/64"}, anyMap{"cidr": "10.7.0.0/16"},
		}}}, networking + ".machineNetwork", "must have at most 2 items"},
		{"worker's part wider than all", prefix("10.4.0.0/16", 15), networking, "hostPrefix must be at least"},
		{"worker's part of IPv6 for IPv4", prefix("10.4.0.0/16", 64), networking, "hostPrefix must be at least"},
	}
}

func listBridgePlacementRejections() []rejection {
	const (
		at    = "spec.controlPlane"
		value = "write the value of a label, such as team-a: letters, digits, '-', '_' and '.'"
	)

	toleration := func(of anyMap) change { return change{at: anyMap{"tolerations": list{of}}} }

	return []rejection{
		{
			"selector by no key", change{at: anyMap{"nodeSelector": anyMap{"a b": "c"}}}, at + ".nodeSelector",
			"nodeSelector must have valid Kubernetes keys",
		},
		{
			"selector by no value", change{at: anyMap{"nodeSelector": anyMap{"a": "b c"}}}, at + ".nodeSelector[a]", value,
		},
		{"label by no key", change{at: anyMap{"labels": anyMap{"a b": "c"}}}, at + ".labels", "labels must have valid Kubernetes keys"},
		{"label by no value", change{at: anyMap{"labels": anyMap{"a": "b c"}}}, at + ".labels[a]", value},
		{"toleration without key", toleration(anyMap{}), at, "needs operator Exists"},
		{"toleration of any taint's value", toleration(anyMap{"operator": "Equal"}), at, "needs operator Exists"},
		{
			"toleration of a value that need not be", toleration(anyMap{"key": "a", "operator": "Exists", "value": "b"}), at,
			"operator Exists must not have a value",
		},
		{"toleration with an invalid value", toleration(anyMap{"key": "a", "value": "b c"}), at + ".tolerations[0].value", value},
		{"limited toleration without effect NoExecute", toleration(anyMap{"key": "a", "tolerationSeconds": int64(1)}), at, "needs effect NoExecute"},
		{"toleration by another operator", toleration(anyMap{"key": "a", "operator": "In"}), at, "Unsupported value"},
		{"toleration of another effect", toleration(anyMap{"key": "a", "effect": "NoWork"}), at, "Unsupported value"},
		{"toleration of no key", toleration(anyMap{"key": "a b"}), at, "key must be a valid Kubernetes key"},
		{"capability of another name", change{at: anyMap{"disabledCapabilities": list{"Storage"}}}, at, "Unsupported value"},
		{"ingress disabled without console", change{at: anyMap{"disabledCapabilities": list{"Ingress"}}}, at, "must also have Console"},
	}
}

func listBridgeUpdates() []update {
	const (
		image   = "spec.ocpReleaseImage"
		address = "spec.metalLBVirtualIP"
	)

	return []update{
		{"bridge to another DPUCluster", baseBridge, change{"spec.dpuClusterRef.name": "other"}, "dpuClusterRef is immutable"},
		{"bridge to another namespace", baseBridge, change{"spec.dpuClusterRef.namespace": "other"}, "dpuClusterRef is immutable"},
		{"bridge with another domain", baseBridge, change{"spec.baseDomain": "other.example.com"}, "baseDomain is immutable"},
		{"bridge with other volumes", baseBridge, change{"spec.etcdStorageClass": "other"}, "etcdStorageClass is immutable"},
		{
			"bridge with fewer replicas", baseBridge, change{"spec.controlPlaneAvailabilityPolicy": "SingleReplica"},
			"controlPlaneAvailabilityPolicy is immutable, because HyperShift cannot change it for an existing cluster",
		},
		{
			"bridge exposed in another way", baseBridge, change{"spec.exposeThroughLoadBalancer": false, address: ""},
			"exposeThroughLoadBalancer is immutable, because HyperShift cannot change how an existing cluster is published",
		},
		{"bridge with another address", baseBridge, change{address: "192.168.1.101"}, ""},
		{"bridge without an address", baseBridge, change{address: ""}, "metalLBVirtualIP is required when"},
		{"bridge is upgraded", baseBridge, change{image: "quay.io/openshift-release-dev/ocp-release:4.16.0-x86_64"}, ""},
		{
			"bridge is pinned", baseBridge,
			change{image: "quay.io/openshift-release-dev/ocp-release@sha256:" + strings.Repeat("0a", 32)}, "",
		},
		{"bridge with another key", baseBridge, change{"spec.sshKeySecretRef.name": "other"}, ""},
		{"bridge with other credentials", baseBridge, change{"spec.pullSecretRef.name": "other"}, ""},
		{"bridge with less infrastructure", baseBridge, change{"spec.infrastructureAvailabilityPolicy": "SingleReplica"}, ""},
		{
			"bridge on other networks", baseBridge, changeNetworks("10.4.0.0/16", "10.5.0.0/16"),
			"networking is immutable, because HyperShift cannot change the networks of an existing cluster",
		},
		{"bridge on the networks that it has", baseBridge, changeNetworks("10.132.0.0/14", "172.31.0.0/16"), ""},
		{
			"bridge of less", baseBridge, change{"spec.controlPlane": anyMap{"disabledCapabilities": list{"Console"}}},
			"disabledCapabilities is immutable",
		},
		{
			"bridge in another place", baseBridge, change{"spec.controlPlane": anyMap{
				"nodeSelector": anyMap{"example.com/control-plane": ""},
				"tolerations":  list{anyMap{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": int64(60)}},
				"labels":       anyMap{"team": "dpu"},
			}}, "",
		},
		{"bridge of another type", baseBridge, change{"spec.clusterType": "dpf-staging"}, ""},
	}
}

// The kind has the names and the columns that the document describes.
func TestBridgeNamesAndColumns(t *testing.T) {
	t.Parallel()

	crd := readCRDs(t)["DPFHCPBridge"]
	names := crd.Spec.Names

	got := []string{crd.Spec.Group, crd.Spec.Versions[0].Name, names.Plural, strings.Join(names.ShortNames, ","), string(crd.Spec.Scope)}

	want := []string{"dpf.hcp.bridge.com", "v1alpha1", "dpfhcpbridges", "dpfhcp", "Namespaced"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}

	if !slices.Equal(names.Categories, []string{"dpf", "hcp"}) {
		t.Errorf("categories %v", names.Categories)
	}

	var columns []string
	for _, column := range crd.Spec.Versions[0].AdditionalPrinterColumns {
		columns = append(columns, column.Name+" "+column.JSONPath)
	}

	want = []string{
		"Phase .status.phase", "DPUCluster .spec.dpuClusterRef.name", `Ready .status.conditions[?(@.type=="Ready")].status`,
		"Age .metadata.creationTimestamp",
	}
	if diff := cmp.Diff(want, columns); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
}

// A bridge has only the names of its Secrets, which are in its namespace: neither their content nor another namespace.
func TestBridgeNamesItsSecrets(t *testing.T) {
	t.Parallel()

	spec := readCRDs(t)["DPFHCPBridge"].Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]

	for _, field := range []string{"sshKeySecretRef", "pullSecretRef"} {
		got := slices.Sorted(maps.Keys(spec.Properties[field].Properties))
		if !slices.Equal(got, []string{"name"}) {
			t.Errorf("%s has the fields %v, want only name", field, got)
		}
	}
}

// The statuses are those of the document's examples. HostedCluster and NodePool are there in another namespace.
func TestBridgeStatusIsKept(t *testing.T) {
	t.Parallel()

	condition := func(name, reason, message string) anyMap {
		return anyMap{
			"type": name, "status": "True", "reason": reason, "message": message, "lastTransitionTime": "2025-12-21T10:30:00Z",
			"observedGeneration": int64(1),
		}
	}

	requireStatusKept(t, baseBridge, anyMap{
		"phase": "Ready", "observedGeneration": int64(5), "message": "Waiting for control plane pods to become ready (2/3 running)",
		"hostedClusterRef": anyMap{"name": "prod-cluster-hcp", "namespace": "clusters"},
		"nodePoolRef":      anyMap{"name": "prod-cluster-workers", "namespace": "clusters"},
		"apiEndpoint":      "https://api.prod-cluster.clusters.example.com:6443",
		"ingressEndpoint":  "*.apps.prod-cluster.clusters.example.com", "kubeconfigSecretRef": anyMap{"name": "prod-cluster-admin-kubeconfig"},
		"conditions": list{
			condition("Ready", "ClusterReady", "all components are healthy"), condition("HostedClusterCreated", "Created", "created"),
			condition("NodePoolReady", "NodesReady", "3/3 worker nodes are ready"), condition("DPUClusterValid", "Valid", "is ready"),
			condition("ServiceExposureReady", "LoadBalancerReady", "API server exposed at 192.168.1.100:6443"),
		},
	})
}

// Only the documented phases are valid, and a condition of a type occurs once.
func TestBridgeStatusIsLimited(t *testing.T) {
	t.Parallel()

	status := readCRDs(t)["DPFHCPBridge"].Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"]

	var phases []string
	for _, phase := range status.Properties["phase"].Enum {
		phases = append(phases, strings.Trim(string(phase.Raw), `"`))
	}

	if diff := cmp.Diff([]string{"Pending", "Provisioning", "Ready", "Failed", "Deleting"}, phases); diff != "" {
		t.Errorf("phases (-want +got):\n%s", diff)
	}

	conditions := status.Properties["conditions"]
	if conditions.XListType == nil || *conditions.XListType != "map" || !slices.Equal(conditions.XListMapKeys, []string{"type"}) {
		t.Errorf("conditions are a list of type %v with the keys %v", conditions.XListType, conditions.XListMapKeys)
	}
}

// The bridge's Deployment differs from the networking area's only in names, and in that it sends no pings.
func TestBridgeDeployment(t *testing.T) {
	t.Parallel()

	base := buildKustomization(t, baseDir)
	bridge := buildKustomization(t, "../../deploy/bridge")
	deployment := findObject[appsv1.Deployment](t, bridge, "Deployment", "hyperfleet-bridge")
	like := findObject[appsv1.Deployment](t, base, "Deployment", networkingName)

	raw, err := yaml.Marshal(like)
	if err != nil {
		t.Fatal(err)
	}

	var want appsv1.Deployment
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(string(raw), networkingName, "hyperfleet-bridge")), &want); err != nil {
		t.Fatal(err)
	}

	want.Spec.Template.Spec.SecurityContext.Sysctls = nil

	if diff := cmp.Diff(&want, deployment); diff != "" {
		t.Errorf("Deployment (-want +got):\n%s", diff)
	}

	settings := findObject[corev1.ConfigMap](t, bridge, "ConfigMap", "hyperfleet-bridge")

	var cfg configv1.OperatorConfig
	err = strictyaml.Decode("operator.yaml", []byte(settings.Data["operator.yaml"]), &cfg)
	if err != nil || !slices.Equal(cfg.Controllers, []string{"bridge"}) {
		t.Errorf("controllers %v, %v", cfg.Controllers, err)
	}

	applyBase(t)

	for _, object := range bridge {
		err := newStrictClient().Patch(t.Context(), object.DeepCopy(), client.Apply, client.FieldOwner("deploy"), client.ForceOwnership) //nolint:staticcheck // Apply takes no unstructured object with field validation
		if err != nil {
			t.Errorf("apply %s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
}
