// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
)

// alone has the area run on the API server, with the kinds that are installed, for a test
// that is HyperShift, MetalLB and DPF itself and runs while no other does.
func alone(t *testing.T, clk clock.WithTicker, install ...func(context.Context, *rest.Config) error) {
	t.Helper()

	for _, install := range install {
		must(t, install(t.Context(), env.Config))
	}

	must(t, makeNode(t.Context()))

	versions := `{"versions":["` + strings.Join(supported(), `","`) + `"]}`

	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metalLB}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "hypershift"}},
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "hypershift", Name: "supported-versions"},
			Data:       map[string]string{"supported-versions": versions},
		},
	} {
		err := env.Client.Create(t.Context(), object)
		if versions, is := object.(*corev1.ConfigMap); is && apierrors.IsAlreadyExists(err) {
			err = env.Client.Update(t.Context(), versions)
		}

		if client.IgnoreAlreadyExists(err) != nil {
			t.Fatal(err)
		}
	}

	ctx, cancel := context.WithCancel(context.Background())
	counts := newCounts()
	done := runArea(ctx, clk, counts)

	t.Cleanup(func() {
		cancel()

		if err := <-done; err != nil {
			t.Error(err)
		}

		// Before a project is there, its kinds have no index.
		if err := counts.check(); err != nil && len(install) > 0 {
			t.Error(err)
		}
	})
}

func has(b *v1alpha1.DPFHCPBridge, condition, want string) bool {
	c := meta.FindStatusCondition(b.Status.Conditions, condition)

	return c != nil && string(c.Status)+" "+c.Reason == want
}

// plane is what the test, as HyperShift, says of a control plane.
type plane struct {
	service    *corev1.Service
	address    string
	conditions map[string]string
	history    list
	nodes      map[string]string
	kubeconfig bool
}

func well() plane {
	return plane{
		service: &corev1.Service{Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 6443}},
		}},
		conditions: map[string]string{"Available": "True AsExpected", "Progressing": "False AsExpected", "Degraded": "False AsExpected"},
		history:    list{"Completed"}, nodes: map[string]string{"AllMachinesReady": "False AsExpected", "AllNodesHealthy": "False AsExpected"},
		kubeconfig: true,
	}
}

// hyperShift plays HyperShift with a control plane that is well.
func (w *world) hyperShift(b *v1alpha1.DPFHCPBridge) {
	w.t.Helper()
	w.play(b, well())
}

// play plays HyperShift and MetalLB for a bridge once it has made its objects.
func (w *world) play(b *v1alpha1.DPFHCPBridge, p plane) {
	w.t.Helper()
	w.says(b, v1alpha1.ConditionHostedClusterCreated, "True Created", "")

	if p.service != nil {
		w.eventually("NodePool", func() bool { return w.get(b).Status.NodePoolRef != nil })
	}

	namespace := hypershift.ControlPlaneNamespace(b.Namespace, b.Name)
	if p.service != nil {
		w.must(client.IgnoreAlreadyExists(env.Client.Create(w.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})))
		w.serve(p, namespace)
	}

	status := anyMap{"conditions": conditionsOf(p.conditions)}
	if p.service != nil {
		status["controlPlaneEndpoint"] = anyMap{"host": "10.20.0.1", "port": int64(30443)}
		w.status(w.read(hypershift.New(hypershift.NodePoolKind()), w.namespace, b.Name), anyMap{"conditions": conditionsOf(p.nodes)})
	}

	history := list{}
	for _, state := range p.history {
		history = append(history, anyMap{
			"image": b.Spec.OCPReleaseImage, "state": state, "version": "4.15.0", "startedTime": "2026-01-01T00:00:00Z",
			"completionTime": "2026-01-01T00:00:00Z",
		})
	}

	if len(history) > 0 {
		status["controlPlaneVersion"] = anyMap{
			"desired": anyMap{"image": b.Spec.OCPReleaseImage, "version": "4.15.0"}, "history": history, "observedGeneration": int64(1),
		}
	}

	if p.kubeconfig {
		secret := w.secret(b.Name+"-admin-kubeconfig", "kubeconfig", "apiVersion: v1")
		w.must(client.IgnoreAlreadyExists(env.Client.Create(w.t.Context(), secret)))

		status["kubeconfig"] = anyMap{"name": secret.Name}
	}

	w.status(w.read(hypershift.New(hypershift.HostedClusterKind()), w.namespace, b.Name), status)
}

// serve makes the Service of a control plane, where it is not there yet.
func (w *world) serve(p plane, namespace string) {
	w.t.Helper()

	service := p.service.DeepCopy()
	service.Namespace, service.Name = namespace, hypershift.APIServerService

	if err := env.Client.Create(w.t.Context(), service); apierrors.IsAlreadyExists(err) {
		return
	} else if err != nil {
		w.t.Fatal(err)
	}

	w.t.Cleanup(func() {
		if err := client.IgnoreNotFound(env.Client.Delete(context.Background(), service)); err != nil {
			w.t.Error(err)
		}
	})

	if p.address != "" {
		service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: p.address}}
		w.must(env.Client.Status().Update(w.t.Context(), service))
	}
}

// refusing is HyperShift that refuses a HostedCluster, and therefore makes nothing.
func refusing(condition, reason string) plane {
	return plane{conditions: map[string]string{
		condition: "False " + reason, "Progressing": "False Blocked", "Available": "False WaitingForAvailable",
		"Degraded": "Unknown StatusUnknown",
	}}
}

func conditionsOf(said map[string]string) list {
	out := list{}

	for _, name := range slices.Sorted(maps.Keys(said)) {
		status, reason, _ := strings.Cut(said[name], " ")
		out = append(out, anyMap{
			"type": name, "status": status, "reason": reason, "message": "it says " + reason,
			"lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": int64(1),
		})
	}

	return out
}

func createdRows() []row {
	const condition = v1alpha1.ConditionHostedClusterCreated

	another := func(object *unstructured.Unstructured) func(*world, *v1alpha1.DPFHCPBridge) {
		return func(w *world, b *v1alpha1.DPFHCPBridge) {
			object := object.DeepCopy()
			stranger := b.DeepCopy()
			stranger.UID = "another"

			made := hypershift.HostedCluster(stranger, "10.20.0.1")
			if object.GetKind() == "NodePool" {
				made = hypershift.NodePool(stranger, b.Spec.OCPReleaseImage)
			}

			made.SetOwnerReferences(nil)
			made.SetLabels(nil)
			w.create(made)
		}
	}

	return []row{
		{
			name: "not tried", spoil: func(w *world, _ *v1alpha1.DPFHCPBridge) { w.dpus1(anyMap{"phase": "Pending"}) },
			condition: condition, want: "Unknown NotCreated", phase: v1alpha1.PhasePending, ready: v1alpha1.ReasonValidationFailed,
		},
		{
			name: "HostedCluster of that name", spoil: another(hypershift.New(hypershift.HostedClusterKind())),
			condition: condition, want: "False CreationFailed", message: "is there and does not belong to this bridge: remove it", phase: v1alpha1.PhaseFailed,
			fix: func(w *world, _ *v1alpha1.DPFHCPBridge) {
				w.delete(hypershift.New(hypershift.HostedClusterKind()), w.namespace, "b")
				w.dpus1(anyMap{"phase": "Ready", "nodesCount": int64(1)}) // a word that something has changed
			},
		},
		{
			name: "NodePool of that name", spoil: another(hypershift.New(hypershift.NodePoolKind())),
			condition: v1alpha1.ConditionNodePoolReady, want: "False NodePoolCreationFailed", message: "is there and does not belong to this bridge",
			phase: v1alpha1.PhaseFailed, ready: v1alpha1.ReasonWaitingForInfrastructure,
		},
		{
			name: "HyperShift refuses the image", spoil: func(_ *world, b *v1alpha1.DPFHCPBridge) {
				long := strings.Repeat("a/", 120) + "release" // HyperShift takes 253 characters
				b.Spec.OCPReleaseImage = registryHost() + "/" + long + "@" + images.Push(long, "")
			},
			condition: condition, want: "False CreationFailed", message: "spec.release.image", phase: v1alpha1.PhaseFailed,
		},
		{
			name: "made", condition: condition, want: "True Created", phase: v1alpha1.PhaseProvisioning,
			ready: v1alpha1.ReasonWaitingForInfrastructure,
		},
	}
}

func readyRows() []row {
	play := func(change func(*plane)) func(*world, *v1alpha1.DPFHCPBridge) {
		return func(w *world, b *v1alpha1.DPFHCPBridge) {
			p := well()
			change(&p)
			w.play(b, p)
		}
	}
	exposed := func(address string) func(*world, *v1alpha1.DPFHCPBridge) {
		return func(_ *world, b *v1alpha1.DPFHCPBridge) {
			b.Spec.ExposeThroughLoadBalancer, b.Spec.MetalLBVirtualIP = true, address
		}
	}
	balancer := func(address string) func(*plane) {
		return func(p *plane) { p.service.Spec.Type, p.address = corev1.ServiceTypeLoadBalancer, address }
	}
	says := func(name, status string) func(*plane) { return func(p *plane) { p.conditions[name] = status } }
	fix := func(w *world, b *v1alpha1.DPFHCPBridge) { w.hyperShift(b) }
	exposure, nodes, ready := v1alpha1.ConditionServiceExposureReady, v1alpha1.ConditionNodePoolReady, v1alpha1.ConditionReady
	infrastructure, control := v1alpha1.ReasonWaitingForInfrastructure, v1alpha1.ReasonWaitingForControlPlane
	provisioning, failed, invalid := v1alpha1.PhaseProvisioning, v1alpha1.PhaseFailed, v1alpha1.ReasonValidationFailed
	refused := func(says, reason string) row {
		return row{
			name: "HyperShift says " + reason, then: func(w *world, b *v1alpha1.DPFHCPBridge) { w.play(b, refusing(says, reason)) },
			condition: ready, want: "False ValidationFailed", message: says + ": it says " + reason, ready: invalid, phase: failed, fix: fix,
		}
	}

	return []row{
		{name: "no Service yet", condition: exposure, want: "False NodePortPending", message: "has not made Service", ready: infrastructure, phase: provisioning, fix: fix},
		{
			name: "Service of another type", then: play(func(p *plane) { p.service.Spec.Type = corev1.ServiceTypeClusterIP }), condition: exposure,
			want: "False ServiceCreationFailed", message: "is of type ClusterIP, and not NodePort", ready: infrastructure, phase: provisioning,
		},
		{
			name: "no address yet", spoil: exposed("10.4.0.1"), then: play(balancer("")), condition: exposure,
			want: "False LoadBalancerPending", message: "has not given Service", ready: infrastructure, phase: provisioning,
		},
		{
			name: "another address", spoil: exposed("10.4.0.2"), then: play(balancer("10.9.9.9")), condition: exposure,
			want: "False LoadBalancerPending", message: "has the address 10.9.9.9, and not 10.4.0.2 yet", ready: infrastructure, phase: provisioning,
		},
		{name: "at its address", spoil: exposed("10.4.0.3"), then: play(balancer("10.4.0.3")), condition: exposure, want: "True LoadBalancerReady", message: "10.4.0.3:6443", ready: "ClusterReady", phase: v1alpha1.PhaseReady},
		{name: "at a node's port", then: fix, condition: exposure, want: "True NodePortReady", message: "the API server is at 10.20.0.1:", ready: "ClusterReady", phase: v1alpha1.PhaseReady},
		{
			name: "nothing is said", then: play(func(p *plane) { p.conditions = nil }), condition: ready, want: "False WaitingForControlPlane",
			message: "has not said anything", ready: control, phase: provisioning, fix: fix,
		},
		{
			name: "not available yet", then: play(says("Available", "False KubeAPIServer")), condition: ready, want: "False WaitingForControlPlane",
			message: "it says KubeAPIServer", ready: control, phase: provisioning, fix: fix,
		},
		{
			name: "being rolled out", then: play(func(p *plane) { p.history = list{"Partial"} }), condition: ready, want: "False WaitingForControlPlane",
			message: "is being rolled out", ready: control, phase: provisioning, fix: fix,
		},
		refused("ValidConfiguration", "InvalidConfiguration"),
		refused("SupportedHostedCluster", "UnsupportedHostedCluster"),
		refused("ValidReleaseImage", "InvalidImage"),
		refused("Progressing", "Blocked"),
		{
			name: "HyperShift fails", then: func(w *world, b *v1alpha1.DPFHCPBridge) {
				w.play(b, plane{conditions: map[string]string{"ReconciliationSucceeded": "False ReconciliationError"}})
			},
			condition: exposure, want: "False NodePortPending", message: "yet: it says ReconciliationError", ready: infrastructure, phase: provisioning, fix: fix,
		},
		{
			name: "no kubeconfig yet", then: play(func(p *plane) { p.kubeconfig = false }), condition: ready, want: "False WaitingForControlPlane",
			message: "has not written the kubeconfig", ready: control, phase: provisioning, fix: fix,
		},
		{
			name: "not available any more", then: func(w *world, b *v1alpha1.DPFHCPBridge) {
				w.hyperShift(b)
				w.reaches(b, v1alpha1.PhaseReady)
				play(says("Available", "False KubeAPIServer"))(w, b)
			},
			condition: ready, want: "False APIServerUnreachable", message: "not available any more", ready: "APIServerUnreachable", phase: v1alpha1.PhaseFailed, fix: fix,
		},
		{
			name: "degraded", then: func(w *world, b *v1alpha1.DPFHCPBridge) {
				w.hyperShift(b)
				w.reaches(b, v1alpha1.PhaseReady)
				play(says("Degraded", "True UnavailableReplicas"))(w, b)
			},
			condition: v1alpha1.ConditionHostedClusterDegraded, want: "True UnavailableReplicas", message: "it says UnavailableReplicas",
			ready: control, phase: failed, fix: fix,
		},
		{
			name: "the key of etcd's Secrets is gone", then: func(w *world, b *v1alpha1.DPFHCPBridge) {
				w.hyperShift(b)
				w.reaches(b, v1alpha1.PhaseReady)
				w.delete(&corev1.Secret{}, w.namespace, hypershift.EncryptionKeyName("b")) // it is never made anew
			},
			condition: ready, want: "False ValidationFailed", message: "is gone: bring it back from a backup",
			ready: "ValidationFailed", phase: v1alpha1.PhaseFailed,
		},
		{
			name: "nodes are waited for", then: play(func(p *plane) { p.nodes["AllMachinesReady"] = "False NotFound" }), condition: nodes,
			want: "False WaitingForNodes", message: "it says NotFound", ready: infrastructure, phase: provisioning, fix: fix,
		},
		{
			name: "nodes are not well", then: play(func(p *plane) { p.nodes["AllNodesHealthy"] = "False NodeConditionsFailed" }), condition: nodes,
			want: "False NodesUnhealthy", message: "AllNodesHealthy: it says NodeConditionsFailed", ready: infrastructure, phase: provisioning, fix: fix,
		},
		{name: "nodes are ready", then: fix, condition: nodes, want: "True NodesReady", message: "0 DPUs have joined", ready: "ClusterReady", phase: v1alpha1.PhaseReady},
	}
}

// everyReason checks that each documented reason has a row. Those of the platform have a test of
// their own, TestKindsComeLater, and Deleted has TestHostedClusterIsDeletedByAnother.
func everyReason(t *testing.T, rows []row) {
	t.Helper()

	said := map[string]bool{}

	for _, row := range rows {
		_, reason, _ := strings.Cut(row.want, " ")
		said[row.condition+" "+reason] = true
		said[v1alpha1.ConditionReady+" "+row.ready] = true
	}

	for condition, reasons := range map[string][]string{
		v1alpha1.ConditionReady:                {"ClusterReady", "WaitingForControlPlane", "WaitingForInfrastructure", "APIServerUnreachable", "ValidationFailed"},
		v1alpha1.ConditionHostedClusterCreated: {"Created", "CreationFailed", "NotCreated"},
		v1alpha1.ConditionNodePoolReady:        {"NodesReady", "WaitingForNodes", "NodePoolCreationFailed", "NodesUnhealthy"},
		v1alpha1.ConditionDPUClusterValid:      {"Valid", "NotFound", "NotReady", "InsufficientResources", "InUse"},
		v1alpha1.ConditionServiceExposureReady: {
			"LoadBalancerReady", "NodePortReady", "LoadBalancerPending", "NodePortPending", "VIPConflict", "ServiceCreationFailed", "VIPNotInPool",
		},
		v1alpha1.ConditionSecretsValid:      {"NotFound", "KeyMissing", "Unreadable"},
		v1alpha1.ConditionStorageClassValid: {"NotFound", "NotDynamic"},
		v1alpha1.ConditionReleaseImageValid: {"Valid", "ImageNotFound", "ImageUnauthorized", "RegistryUnreachable", "VersionNotSupported"},
	} {
		for _, reason := range reasons {
			if !said[condition+" "+reason] {
				t.Errorf("no row has %s %s", condition, reason)
			}
		}
	}
}
