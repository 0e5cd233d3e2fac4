// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/watch"
)

const (
	// kubeconfigKey is the key of the kubeconfig in HyperShift's Secret.
	kubeconfigKey = "kubeconfig"
	// kubeconfigSuffix is the end of that Secret's name, after the name of the HostedCluster.
	kubeconfigSuffix = "-admin-kubeconfig"
	// approvedReason is the reason of the condition Approved.
	approvedReason = "HyperFleetBridgeApproved"
	eventApproved  = "CSRApproved"
	eventRefused   = "CSRRefused"
	actionApprove  = "ApproveCSR"
	actionCheck    = "Check"
	// actionSkipEvents is the action of the event that says that there are no events of further refusals.
	actionSkipEvents = "SkipEvents"
	// maxRefusalEvents is the maximum number of pending requests of a bridge whose refusals are events. Workers
	// can create any number of requests.
	maxRefusalEvents = 100
)

// DPUKind returns the kind of DPF's workers.
func DPUKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "provisioning.dpu.nvidia.com", Version: "v1alpha1", Kind: "DPU"}
}

// Approver approves the certificates of DPU workers.
type Approver struct {
	// Client reads bridges from the cache. APIReader reads from the API server what must be current.
	Client    client.Client
	APIReader client.Reader
	// Recorder records decisions as events of the bridge.
	Recorder events.EventRecorder
	Registry prometheus.Registerer
	Clock    clock.PassiveClock
	Log      *slog.Logger
	// WrapTransport wraps the transports to hosted clusters, for example to count calls. It may be nil.
	WrapTransport func(http.RoundTripper) http.RoundTripper
	Concurrency   int

	clusters  *hostedClusters
	decisions *prometheus.CounterVec
	// clusterEvents enqueues bridges when something changed in their hosted clusters.
	clusterEvents watch.Source
	// dpus reads DPUs from the cache of the controller's watch.
	dpus client.Reader
}

//+kubebuilder:rbac:groups=dpf.hcp.bridge.com,resources=dpfhcpbridges,verbs=list;watch
//+kubebuilder:rbac:groups=provisioning.dpu.nvidia.com,resources=dpus,verbs=get;list;watch
//+kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch
//+kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager adds the controller to a manager. The CRD of DPUs must be installed.
func (a *Approver) SetupWithManager(mgr ctrl.Manager) error {
	scheme, err := newScheme()
	if err != nil {
		return err
	}

	a.dpus = mgr.GetCache()
	a.decisions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "hyperfleet_bridge_csr_decisions_total",
		Help: "Certificate requests of workers in hosted clusters, by result (approved or refused) and reason of the refusal.",
	}, []string{"result", "reason"})

	if err := a.Registry.Register(a.decisions); err != nil {
		return fmt.Errorf("register metrics of certificate requests: %w", err)
	}

	a.clusters = &hostedClusters{
		scheme: scheme, wrapTransport: a.WrapTransport, enqueue: a.clusterEvents.Enqueue,
		clusters: map[types.NamespacedName]*hostedCluster{},
	}
	if err := mgr.Add(a.clusters); err != nil {
		return fmt.Errorf("add watches of hosted clusters: %w", err)
	}

	dpu := &unstructured.Unstructured{}
	dpu.SetGroupVersionKind(DPUKind())

	err = ctrl.NewControllerManagedBy(mgr).
		Named("bridge-csr").
		For(&v1alpha1.DPFHCPBridge{}, builder.WithPredicates(newUsabilityPredicate())).
		Watches(dpu, handler.EnqueueRequestsFromMapFunc(a.findBridgesOfDPU)).
		WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(findBridgeOfKubeconfig)).
		WatchesRawSource(&a.clusterEvents).
		WithOptions(controller.Options{MaxConcurrentReconciles: max(a.Concurrency, 1)}).
		Complete(a)
	if err != nil {
		return fmt.Errorf("set up controller bridge-csr: %w", err)
	}

	return nil
}

// newUsabilityPredicate returns a predicate for updates of bridges after which the hosted cluster can be
// used or can no longer be used.
func newUsabilityPredicate() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, beforeOK := e.ObjectOld.(*v1alpha1.DPFHCPBridge)
		after, afterOK := e.ObjectNew.(*v1alpha1.DPFHCPBridge)

		return !beforeOK || !afterOK || isUsable(before) != isUsable(after) ||
			before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero()
	}}
}

// findBridgesOfDPU returns requests for the bridges of the DPUCluster that a DPU joins.
func (a *Approver) findBridgesOfDPU(_ context.Context, object client.Object) []reconcile.Request {
	o, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil
	}

	var out []reconcile.Request

	dpu := decodeDPU(o)
	for _, bridge := range a.clusters.bridgesOf(types.NamespacedName{Namespace: dpu.Namespace, Name: dpu.Cluster}) {
		out = append(out, reconcile.Request{NamespacedName: bridge})
	}

	return out
}

// findBridgeOfKubeconfig returns a request for the bridge to whose hosted cluster a kubeconfig of
// HyperShift belongs. The bridge and the HostedCluster have the same name.
func findBridgeOfKubeconfig(_ context.Context, secret client.Object) []reconcile.Request {
	name, ok := strings.CutSuffix(secret.GetName(), kubeconfigSuffix)
	if !ok {
		return nil
	}

	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: secret.GetNamespace(), Name: name}}}
}

func decodeDPU(object *unstructured.Unstructured) *DPU {
	text := func(path ...string) string {
		value, _, _ := unstructured.NestedString(object.Object, path...)

		return value
	}

	return &DPU{
		Namespace: text("spec", "cluster", "namespace"), Cluster: text("spec", "cluster", "name"), Phase: text("status", "phase"),
	}
}

// Reconcile decides about the pending requests in the hosted cluster of a bridge.
func (a *Approver) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	bridge := &v1alpha1.DPFHCPBridge{}

	// A bridge that does not exist stays empty and is therefore not usable.
	if err := client.IgnoreNotFound(a.Client.Get(ctx, request.NamespacedName, bridge)); err != nil {
		return reconcile.Result{}, fmt.Errorf("get bridge %s: %w", request, err)
	}

	if !bridge.DeletionTimestamp.IsZero() || !isUsable(bridge) {
		a.clusters.stopWatching(request.NamespacedName)

		return reconcile.Result{}, nil
	}

	kubeconfig, err := a.readKubeconfig(ctx, bridge)
	if err != nil || kubeconfig == nil {
		a.clusters.stopWatching(request.NamespacedName)

		return reconcile.Result{}, err
	}

	cluster, err := a.clusters.getOrOpen(request.NamespacedName, dpuClusterKey(bridge), kubeconfig)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("connect to hosted cluster of %s: %w", request, err)
	}

	if !cluster.hasSynced() {
		// When the caches have synced, the bridge is enqueued again.
		return reconcile.Result{}, nil
	}

	return reconcile.Result{}, a.decidePending(ctx, bridge, cluster)
}

// isUsable returns whether the bridge has a hosted cluster and a kubeconfig for it.
func isUsable(bridge *v1alpha1.DPFHCPBridge) bool {
	return bridge.Status.KubeconfigSecretRef != nil &&
		meta.IsStatusConditionTrue(bridge.Status.Conditions, v1alpha1.ConditionHostedClusterCreated)
}

func dpuClusterKey(bridge *v1alpha1.DPFHCPBridge) types.NamespacedName {
	return types.NamespacedName{Namespace: bridge.Spec.DPUClusterRef.Namespace, Name: bridge.Spec.DPUClusterRef.Name}
}

// readKubeconfig reads the kubeconfig from HyperShift's Secret. It returns nil if the Secret does not
// exist.
func (a *Approver) readKubeconfig(ctx context.Context, bridge *v1alpha1.DPFHCPBridge) ([]byte, error) {
	key := types.NamespacedName{Namespace: bridge.Namespace, Name: bridge.Status.KubeconfigSecretRef.Name}

	data, err := credential.ReadKubeconfig(ctx, a.APIReader, key, kubeconfigKey, func(secret *corev1.Secret) error {
		for _, owner := range secret.OwnerReferences {
			if owner.Kind == "HostedCluster" && owner.Name == bridge.Name {
				return nil
			}
		}

		return fmt.Errorf("use Secret %s: %w", key, errNotOwned)
	})
	if errclass.ReasonOf(err, "") == credential.ReasonSecretNotFound {
		return nil, nil
	}

	return data, err
}

// decidePending approves or refuses each pending request of a hosted cluster. It stops at the first error.
func (a *Approver) decidePending(ctx context.Context, bridge *v1alpha1.DPFHCPBridge, cluster *hostedCluster) error {
	pending, err := cluster.listPending(ctx)
	if err != nil {
		return err
	}

	cluster.removeOldRefusals(pending)

	for i := range pending {
		object := &pending[i]

		isRefused, err := a.isStillRefused(ctx, bridge, cluster, object)
		if err != nil {
			return err
		}

		if isRefused {
			continue
		}

		node, refusal, err := a.checkRequest(ctx, bridge, cluster, object)
		if err != nil {
			return err
		}

		if refusal != nil {
			a.reportRefusal(bridge, cluster, object, node, refusal)

			continue
		}

		if err := a.approve(ctx, bridge, cluster, object.DeepCopy()); err != nil {
			return err
		}
	}

	return nil
}

// isStillRefused returns whether a request was refused for its content, or because its DPU does not exist, and this
// has not changed. It does not parse the request, because there can be thousands of such requests.
func (a *Approver) isStillRefused(
	ctx context.Context, bridge *v1alpha1.DPFHCPBridge, cluster *hostedCluster, object *certificatesv1.CertificateSigningRequest,
) (bool, error) {
	known, wasRefused := cluster.refused[object.UID]

	switch {
	case !wasRefused:
		return false, nil
	case known.isFinal():
		return true, nil
	case known.reason != ReasonDPUNotFound:
		return false, nil
	}

	dpu, err := getDPU(ctx, a.dpus, bridge.Spec.DPUClusterRef.Namespace, known.node)

	return dpu == nil, err
}

// checkRequest checks a request against the state of both clusters. It returns the name of the node, unless the content of
// the request is refused.
func (a *Approver) checkRequest(
	ctx context.Context, bridge *v1alpha1.DPFHCPBridge, cluster *hostedCluster, object *certificatesv1.CertificateSigningRequest,
) (node string, refusal *Refusal, err error) {
	if node, refusal = CheckContent(object); refusal != nil {
		return "", refusal, nil
	}

	dpus := dpuClusterKey(bridge)
	facts := Facts{Namespace: dpus.Namespace, Cluster: dpus.Name, OtherNodeWithAddress: func(address string) string {
		return cluster.findOtherNode(ctx, address, node)
	}}

	if facts.Node, err = cluster.getNode(ctx, node); err != nil {
		return "", nil, err
	}

	// Only a request that the cache permits causes a call of the API server. A change of the DPU enqueues the bridge.
	for _, reader := range []client.Reader{a.dpus, a.APIReader} {
		if facts.DPU, err = getDPU(ctx, reader, dpus.Namespace, node); err != nil {
			return "", nil, err
		}

		if refusal := Check(object, facts); refusal != nil {
			return node, refusal, nil
		}
	}

	return node, nil, nil
}

// getDPU returns a DPU, and nil if it does not exist or is being deleted.
func getDPU(ctx context.Context, reader client.Reader, namespace, name string) (*DPU, error) {
	dpu := &unstructured.Unstructured{}
	dpu.SetGroupVersionKind(DPUKind())

	err := reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, dpu)
	if apierrors.IsNotFound(err) || err == nil && dpu.GetDeletionTimestamp() != nil {
		return nil, nil //nolint:nilnil // a DPU that does not exist is no error
	}

	if err != nil {
		return nil, fmt.Errorf("get DPU %s/%s: %w", namespace, name, err)
	}

	return decodeDPU(dpu), nil
}

// approve approves a request, counts it, and emits an event. It does nothing if the request was changed or
// deleted in the meantime.
func (a *Approver) approve(
	ctx context.Context, bridge *v1alpha1.DPFHCPBridge, cluster *hostedCluster, object *certificatesv1.CertificateSigningRequest,
) error {
	now := metav1.NewTime(a.Clock.Now())
	object.Status.Conditions = append(object.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: approvedReason,
		Message:        fmt.Sprintf("The node is a DPU of DPUCluster %s and needs this certificate.", dpuClusterKey(bridge)),
		LastUpdateTime: now, LastTransitionTime: now,
	})

	err := cluster.client.SubResource("approval").Update(ctx, object)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		// The watch reports the change or the deletion and enqueues the bridge again.
		return nil
	}

	if err != nil {
		return fmt.Errorf("approve request %s in hosted cluster of %s: %w", object.Name, client.ObjectKeyFromObject(bridge), err)
	}

	a.decisions.WithLabelValues("approved", "").Inc()
	a.Recorder.Eventf(bridge, object, corev1.EventTypeNormal, eventApproved, actionApprove,
		"approved %s for %s of the hosted cluster", object.Spec.SignerName, object.Name)
	a.Log.InfoContext(ctx, "approved certificate of worker", "bridge", client.ObjectKeyFromObject(bridge).String(),
		"request", object.Name, "signer", object.Spec.SignerName)

	return nil
}

// reportRefusal records an event and a metric for a request that stays pending. It reports each reason of a request
// once. If many requests are pending, it records only the metric.
func (a *Approver) reportRefusal(
	bridge *v1alpha1.DPFHCPBridge, cluster *hostedCluster, object *certificatesv1.CertificateSigningRequest,
	node string, refusal *Refusal,
) {
	former := cluster.refused[object.UID]
	if former.reason == refusal.Reason {
		return
	}

	a.decisions.WithLabelValues("refused", refusal.Reason).Inc()

	hasEvent := former.hasEvent || cluster.eventCount < maxRefusalEvents
	cluster.refused[object.UID] = refusedRequest{reason: refusal.Reason, node: node, hasEvent: hasEvent}

	if !hasEvent {
		if !cluster.isLimitReported {
			cluster.isLimitReported = true
			a.Recorder.Eventf(bridge, nil, corev1.EventTypeWarning, eventRefused, actionSkipEvents,
				"did not approve more than %d pending requests of the hosted cluster: further ones have no events", maxRefusalEvents)
		}

		return
	}

	if !former.hasEvent {
		cluster.eventCount++
	}

	// The recorder merges events of one action about the same two objects and keeps the note of the first
	// event. The reason in the action keeps events with different reasons apart.
	a.Recorder.Eventf(bridge, object, corev1.EventTypeWarning, eventRefused, actionCheck+refusal.Reason,
		"did not approve %s of the hosted cluster: %s: %s", object.Name, refusal.Reason, refusal.Message)
}
