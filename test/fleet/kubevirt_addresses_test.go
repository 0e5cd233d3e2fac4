// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
)

// newNetworkCRD returns the CRD of NetworkAttachmentDefinition, without a schema, because only the existence of
// its objects matters here.
func newNetworkCRD() *apiextensionsv1.CustomResourceDefinition {
	keep := true

	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "network-attachment-definitions.k8s.cni.cncf.io"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "k8s.cni.cncf.io", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: "network-attachment-definitions", Singular: "network-attachment-definition", Kind: "NetworkAttachmentDefinition",
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{
					OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &keep},
				},
			}},
		},
	}
}

// createNetwork creates the network of the machines.
func (s *kubeVirtFleet) createNetwork(t *testing.T, name string) {
	t.Helper()

	definition := &unstructured.Unstructured{}
	definition.SetGroupVersionKind(schema.GroupVersionKind{Group: "k8s.cni.cncf.io", Version: "v1", Kind: "NetworkAttachmentDefinition"})
	definition.SetNamespace(s.machineNamespace)
	definition.SetName(name)
	s.Eventually("a network", func() (bool, string) {
		err := env.Client.Create(t.Context(), definition)

		return client.IgnoreAlreadyExists(err) == nil, "not created yet"
	})
}

// updateTemplate gives the fleet's template an address pool on a network, and its own network data.
func (s *kubeVirtFleet) updateTemplate(t *testing.T, network, data string) *v1alpha1.HypervisorMachineTemplate {
	t.Helper()

	pool := newAddressPool("10.9.0.10-10.9.0.12", "fd00:9::10-fd00:9::12")
	template := s.NewTemplate()
	updateObject(s.Fleet, template, func() {
		template.Spec.Template.KubeVirt.Network = network
		template.Spec.CloudInit = &v1alpha1.CloudInit{NetworkData: data}
		template.Spec.Network = &v1alpha1.MachineNetwork{
			Mode: v1alpha1.NetworkModeCloudInit, Interface: "enp1s0", Static: &v1alpha1.StaticNetwork{Pool: &pool},
		}
	})

	return template
}

// TestAddressesOnKubeVirt checks that KubeVirt machines get addresses of their template's pool, in the template's
// own network data at its interface, and that the guest reports them. Network data without the interface are
// rejected with a message. A KubevirtNodePool on the network cannot have the same addresses.
func TestAddressesOnKubeVirt(t *testing.T) {
	t.Parallel()

	const kept = "mtu: 9000"

	s := newKubeVirtFleet(t, false)
	s.Networking = true
	s.createNetwork(t, "machines")

	template := s.updateTemplate(t, "machines", "version: 2\nethernets:\n  eth0: {"+kept+"}\n")
	s.Start()

	checkContains(t, s.EventuallyCondition(template, "Ready", metav1.ConditionFalse, "NetworkDataInvalid"), `"enp1s0"`)

	template = s.updateTemplate(t, "machines", `{"version": 2, "ethernets": {"enp1s0": {"mtu": 9000}}}`)
	s.EventuallyReady(template)

	claim := s.NewClaim("addressed")
	s.Create(claim)
	s.Eventually("the guest reporting the first address", func() (bool, string) {
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil || claim.Status.NetworkInfo == nil {
			return false, "nothing yet"
		}

		return claim.Status.NetworkInfo.IPAddress == "10.9.0.10", s.Describe()
	})

	info := claim.Status.NetworkInfo
	if !slices.Equal(info.Addresses, []string{"10.9.0.10/24", "fd00:9::10/64"}) || info.AddressNetwork != s.machineNamespace+"/machines" {
		t.Errorf("the claim has %+v", info)
	}

	s.checkOverlap(t)

	// The claim may take one of the jobs, because it belongs to no pool. Then the pool has one machine too many.
	pool := s.NewPool(0)
	updateObject(s.Fleet, pool, func() { pool.Spec.Scaling.ScaleDownDelay = &metav1.Duration{} })
	queueJobs(s.Fleet, 2)
	s.EventuallyJobsDone(2)
	s.EventuallyClean()
}

// checkOverlap creates a node pool with an address of the template's pool, on the same network, and checks that it
// is rejected.
func (s *kubeVirtFleet) checkOverlap(t *testing.T) {
	t.Helper()

	attach := false
	nodes := &infrav1.KubevirtNodePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "nodes"},
		Spec: infrav1.KubevirtNodePoolSpec{
			Replicas: 0, AttachDefaultNetwork: &attach,
			AdditionalNetworks: []infrav1.KubevirtNetwork{{Name: s.machineNamespace + "/machines"}},
			BootstrapNetworkConfig: &infrav1.KubevirtBootstrapNetworkConfig{
				Addresses: []infrav1.AddressRange{"10.9.0.12-10.9.0.20"}, PrefixLengthV4: 24,
			},
			RootVolume: infrav1.KubevirtRootVolume{DiskImage: infrav1.KubevirtDiskImage{ContainerDiskImage: "registry.example.com/node:1"}},
			Compute:    &infrav1.KubevirtCompute{Cores: 1, Memory: resource.MustParse("1Gi")},
		},
	}
	s.Create(nodes)

	message := ""

	s.Eventually("the node pool being rejected", func() (bool, string) {
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(nodes), nodes); err != nil {
			return false, err.Error()
		}

		c := meta.FindStatusCondition(nodes.Status.Conditions, infrav1.ConditionValidNetworkConfig)
		if c == nil {
			return false, "no condition"
		}

		message = c.Message

		return c.Reason == "OverlappingAddresses", c.Reason + " " + message
	})

	checkContains(t, message, "HypervisorMachineTemplate "+s.Namespace+"/"+s.NewTemplate().Name, "10.9.0.12")
	deleteObject(s.Fleet, nodes)
}
