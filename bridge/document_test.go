// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/dpfhcpbridge"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/scrape"
)

// Names that users see are those of document 004. The other tests name them by constants.
func TestDocumentNames(t *testing.T) {
	t.Parallel()

	const (
		types = "Ready HostedClusterCreated NodePoolReady DPUClusterValid ServiceExposureReady"
		ready = "ClusterReady WaitingForControlPlane WaitingForInfrastructure APIServerUnreachable ValidationFailed"
		made  = "Created CreationFailed NotCreated Deleted"
		nodes = "NodesReady WaitingForNodes NodePoolCreationFailed NodesUnhealthy"
		dpus  = "Valid NotFound NotReady InsufficientResources"
		ways  = "LoadBalancerReady NodePortReady LoadBalancerPending VIPConflict ServiceCreationFailed"
		other = "MismatchedAvailability ssh-publickey .dockerconfigjson HighlyAvailable SingleReplica"
	)

	got := []string{
		v1alpha1.ConditionReady, v1alpha1.ConditionHostedClusterCreated, v1alpha1.ConditionNodePoolReady, v1alpha1.ConditionDPUClusterValid,
		v1alpha1.ConditionServiceExposureReady,
		v1alpha1.ReasonClusterReady, v1alpha1.ReasonWaitingForControlPlane, v1alpha1.ReasonWaitingForInfrastructure,
		v1alpha1.ReasonAPIServerUnreachable, v1alpha1.ReasonValidationFailed,
		v1alpha1.ReasonCreated, v1alpha1.ReasonCreationFailed, v1alpha1.ReasonNotCreated, v1alpha1.ReasonDeleted,
		v1alpha1.ReasonNodesReady, v1alpha1.ReasonWaitingForNodes, v1alpha1.ReasonNodePoolCreationFailed, v1alpha1.ReasonNodesUnhealthy,
		v1alpha1.ReasonValid, v1alpha1.ReasonNotFound, v1alpha1.ReasonNotReady, v1alpha1.ReasonInsufficientResources,
		v1alpha1.ReasonLoadBalancerReady, v1alpha1.ReasonNodePortReady, v1alpha1.ReasonLoadBalancerPending, v1alpha1.ReasonVIPConflict,
		v1alpha1.ReasonServiceCreationFailed,
		v1alpha1.EventMismatchedAvailability, v1alpha1.SSHKeySecretKey, v1alpha1.PullSecretKey,
		string(v1alpha1.HighlyAvailable), string(v1alpha1.SingleReplica),
	}
	want := strings.Fields(strings.Join([]string{types, ready, made, nodes, dpus, ways, other}, " "))

	if !slices.Equal(got, want) {
		t.Errorf("names %v, want %v", got, want)
	}
}

// The finalizer has the document's name. A bridge deletes its HostedCluster first, then its NodePool and the kubeconfig
// of its DPUCluster, and stays until all of them are gone.
func TestBridgeFinalizer(t *testing.T) {
	t.Parallel()

	const hold = "example.com/hold"

	w := newFixture(t)
	w.createDPUCluster("ends", hypershift.PhaseReady)

	b := w.newBridge("ends")
	w.create(b)

	if got := w.waitForPhase(b, v1alpha1.PhaseReady); !slices.Equal(got.Finalizers, []string{"dpf.hcp.bridge.com/dpfhcpbridge-finalizer"}) {
		t.Errorf("finalizers %v", got.Finalizers)
	}

	// read returns an object of the bridge. Its name is empty if it does not exist.
	read := func(kind schema.GroupVersionKind) *unstructured.Unstructured {
		object := hypershift.NewObject(kind)
		w.must(client.IgnoreNotFound(env.Client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "ends"}, object)))

		return object
	}
	setFinalizer := func(kind schema.GroupVersionKind, change func([]string) []string) {
		w.eventually("the finalizer is set", func() bool {
			object := read(kind)
			object.SetFinalizers(change(object.GetFinalizers()))

			return env.Client.Update(t.Context(), object) == nil
		})
	}
	release := func(kind schema.GroupVersionKind) {
		setFinalizer(kind, func(all []string) []string { return slices.DeleteFunc(all, func(f string) bool { return f == hold }) })
	}
	kubeconfig := func() error {
		return env.Client.Get(t.Context(), client.ObjectKey{Namespace: w.dpuNamespace, Name: "ends-hcp-kubeconfig"}, &corev1.Secret{})
	}

	for _, kind := range []schema.GroupVersionKind{hypershift.HostedClusterKind(), hypershift.NodePoolKind()} {
		if object := read(kind); !metav1.IsControlledBy(object, w.getBridge(b)) {
			t.Errorf("the owners of the %s: %v", kind.Kind, object.GetOwnerReferences())
		}

		setFinalizer(kind, func(all []string) []string { return append(all, hold) })
	}

	w.must(env.Client.Delete(t.Context(), w.getBridge(b)))
	w.waitForPhase(b, v1alpha1.PhaseDeleting)
	w.eventually("the HostedCluster is being deleted", func() bool {
		return read(hypershift.HostedClusterKind()).GetDeletionTimestamp() != nil
	})

	w.waitForCondition(b, v1alpha1.ConditionReady, "False Deleting", "HostedCluster "+client.ObjectKeyFromObject(b).String()+" is being deleted")
	w.waitForCondition(b, v1alpha1.ConditionReady, "False Deleting", hold)

	if kubeconfig() != nil {
		t.Error("the kubeconfig is deleted before the HostedCluster")
	}

	release(hypershift.HostedClusterKind())
	w.eventually("the NodePool is being deleted", func() bool { return read(hypershift.NodePoolKind()).GetDeletionTimestamp() != nil })

	if len(w.getBridge(b).Finalizers) == 0 || kubeconfig() != nil {
		t.Error("the bridge does not wait for its NodePool")
	}

	release(hypershift.NodePoolKind())
	w.eventually("the bridge is deleted", func() bool {
		return apierrors.IsNotFound(env.Client.Get(t.Context(), client.ObjectKeyFromObject(b), &v1alpha1.DPFHCPBridge{}))
	})

	if err := kubeconfig(); !apierrors.IsNotFound(err) || read(hypershift.HostedClusterKind()).GetName() != "" {
		t.Errorf("the kubeconfig or the HostedCluster is left: %v", err)
	}

	// DPF does not allow to change the field.
	dpus := w.readObject(hypershift.NewObject(hypershift.DPUClusterKind()), w.dpuNamespace, "ends")
	if got := hypershift.DecodeDPUCluster(dpus).Kubeconfig; got != "ends-hcp-kubeconfig" {
		t.Errorf("the DPUCluster names %q", got)
	}
}

// bridgesInPhases is a reader of bridges in these phases.
type bridgesInPhases []v1alpha1.DPFHCPBridgePhase

// Get reads nothing.
func (bridgesInPhases) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return nil
}

// List lists the bridges.
func (p bridgesInPhases) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	bridges, ok := list.(*v1alpha1.DPFHCPBridgeList)
	for _, phase := range p {
		if ok {
			bridges.Items = append(bridges.Items, v1alpha1.DPFHCPBridge{Status: v1alpha1.DPFHCPBridgeStatus{Phase: phase}})
		}
	}

	return nil
}

// The registry of the operator has the durations of the steps of a bridge's reconciles.
func TestBridgeReconcilesAreMeasured(t *testing.T) { //nolint:paralleltest // reading the metrics lists all bridges, which counts.check reports
	must.Do(t, installKinds(t.Context(), env.Config))

	registry := runAreaAlone(t, clock.RealClock{})
	w := newIsolatedFixture(t)
	b := w.newBridge("measured")
	w.create(b)
	w.waitForCondition(b, v1alpha1.ConditionDPUClusterValid, "False NotFound", "")

	const labels = `step="DPUClusterValid"`
	if scrape.SumOf(t, registry, "hyperfleet_step_duration_seconds_count", labels) == 0 {
		t.Errorf("the metrics have no steps with %s", labels)
	}
}

func TestBridgeMetrics(t *testing.T) {
	t.Parallel()

	want := `
# HELP hyperfleet_bridge_bridges The number of bridges in a phase.
# TYPE hyperfleet_bridge_bridges gauge
hyperfleet_bridge_bridges{phase="Deleting"} 0
hyperfleet_bridge_bridges{phase="Failed"} 2
hyperfleet_bridge_bridges{phase="Pending"} 0
hyperfleet_bridge_bridges{phase="Provisioning"} 0
hyperfleet_bridge_bridges{phase="Ready"} 1
`
	bridges := bridgesInPhases{v1alpha1.PhaseFailed, v1alpha1.PhaseReady, v1alpha1.PhaseFailed, ""}

	if err := testutil.CollectAndCompare(dpfhcpbridge.NewCollector(bridges), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
