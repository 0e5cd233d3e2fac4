// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"

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
	"github.com/hyperfleet/hyperfleet/kit/trigger"
)

const (
	// kubeconfigKey is the key of HyperShift's Secret.
	kubeconfigKey = "kubeconfig"
	// kubeconfigSuffix follows the HostedCluster's name in that of the Secret.
	kubeconfigSuffix = "-admin-kubeconfig"
	// approvedReason is the reason of the condition Approved.
	approvedReason = "HyperFleetBridgeApproved"
	eventApproved  = "CSRApproved"
	eventRefused   = "CSRRefused"
	actionApprove  = "ApproveCSR"
	actionCheck    = "Check"
	// remembered bounds what is remembered of requests that were told of.
	remembered = 4096
)

// DPUKind is DPF's worker.
func DPUKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "provisioning.dpu.nvidia.com", Version: "v1alpha1", Kind: "DPU"}
}

// Approver approves the certificates of DPU workers.
type Approver struct {
	// Client reads bridges from a cache, Live what must be fresh.
	Client client.Client
	Live   client.Reader
	// Recorder tells of decisions at the bridge.
	Recorder events.EventRecorder
	Registry prometheus.Registerer
	Clock    clock.PassiveClock
	Log      *slog.Logger
	// Transport counts calls to hosted clusters; may be nil.
	Transport   func(http.RoundTripper) http.RoundTripper
	Concurrency int

	fleet     *fleet
	decisions *prometheus.CounterVec
	// changed are bridges with news of their hosted clusters.
	changed trigger.Source

	mu sync.Mutex
	// told are the refusals that were told of, by the request's uid.
	told map[types.UID]string
}

//+kubebuilder:rbac:groups=dpf.hcp.bridge.com,resources=dpfhcpbridges,verbs=list;watch
//+kubebuilder:rbac:groups=provisioning.dpu.nvidia.com,resources=dpus,verbs=get;list;watch
//+kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch
//+kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager adds the controller to a manager, whose API server has DPUs.
func (a *Approver) SetupWithManager(mgr ctrl.Manager) error {
	scheme, err := newScheme()
	if err != nil {
		return err
	}

	a.told = map[types.UID]string{}
	a.decisions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "hyperfleet_bridge_csr_decisions_total",
		Help: "Certificate requests of workers in hosted clusters that were approved, or refused and why.",
	}, []string{"result", "reason"})

	if err := a.Registry.Register(a.decisions); err != nil {
		return fmt.Errorf("register metrics of certificate requests: %w", err)
	}

	a.fleet = &fleet{
		scheme: scheme, transport: a.Transport, enqueue: a.changed.Enqueue, clusters: map[types.NamespacedName]*hosted{},
	}
	if err := mgr.Add(a.fleet); err != nil {
		return fmt.Errorf("add watches of hosted clusters: %w", err)
	}

	dpu := &unstructured.Unstructured{}
	dpu.SetGroupVersionKind(DPUKind())

	err = ctrl.NewControllerManagedBy(mgr).
		Named("bridge-csr").
		For(&v1alpha1.DPFHCPBridge{}, builder.WithPredicates(turns())).
		Watches(dpu, handler.EnqueueRequestsFromMapFunc(a.ofDPU)).
		WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(ofKubeconfig)).
		WatchesRawSource(&a.changed).
		WithOptions(controller.Options{MaxConcurrentReconciles: max(a.Concurrency, 1)}).
		Complete(a)
	if err != nil {
		return fmt.Errorf("set up controller bridge-csr: %w", err)
	}

	return nil
}

// turns are the changes of bridges that matter here: that a hosted cluster can be used, or
// can't be any more.
func turns() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, was := e.ObjectOld.(*v1alpha1.DPFHCPBridge)
		now, is := e.ObjectNew.(*v1alpha1.DPFHCPBridge)

		return !was || !is || usable(before) != usable(now) || before.DeletionTimestamp.IsZero() != now.DeletionTimestamp.IsZero()
	}}
}

// ofDPU has the bridge looked at that a DPU joins.
func (a *Approver) ofDPU(_ context.Context, object client.Object) []reconcile.Request {
	o, is := object.(*unstructured.Unstructured)
	if !is {
		return nil
	}

	var out []reconcile.Request

	read := readDPU(o)
	for _, bridge := range a.fleet.of(types.NamespacedName{Namespace: read.Namespace, Name: read.Cluster}) {
		out = append(out, reconcile.Request{NamespacedName: bridge})
	}

	return out
}

// ofKubeconfig has the bridge looked at whose hosted cluster a kubeconfig of HyperShift's leads
// to: both bear one name.
func ofKubeconfig(_ context.Context, secret client.Object) []reconcile.Request {
	name, is := strings.CutSuffix(secret.GetName(), kubeconfigSuffix)
	if !is {
		return nil
	}

	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: secret.GetNamespace(), Name: name}}}
}

func readDPU(object *unstructured.Unstructured) *DPU {
	text := func(path ...string) string {
		value, _, _ := unstructured.NestedString(object.Object, path...)

		return value
	}

	return &DPU{
		Namespace: text("spec", "cluster", "namespace"), Cluster: text("spec", "cluster", "name"), Phase: text("status", "phase"),
	}
}

// Reconcile decides about the requests that are pending in a bridge's hosted cluster.
func (a *Approver) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	bridge := &v1alpha1.DPFHCPBridge{}

	// One that is not there is not usable either.
	if err := client.IgnoreNotFound(a.Client.Get(ctx, request.NamespacedName, bridge)); err != nil {
		return reconcile.Result{}, fmt.Errorf("get bridge %s: %w", request, err)
	}

	if !bridge.DeletionTimestamp.IsZero() || !usable(bridge) {
		a.fleet.forget(request.NamespacedName)

		return reconcile.Result{}, nil
	}

	kubeconfig, err := a.kubeconfig(ctx, bridge)
	if err != nil || kubeconfig == nil {
		a.fleet.forget(request.NamespacedName)

		return reconcile.Result{}, err
	}

	cluster, err := a.fleet.get(request.NamespacedName, dpuCluster(bridge), kubeconfig)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("reach hosted cluster of %s: %w", request, err)
	}

	if !cluster.known() {
		// What there is comes as news.
		return reconcile.Result{}, nil
	}

	return reconcile.Result{}, a.decideAll(ctx, bridge, cluster)
}

// usable says whether the bridge stands on its DPUCluster and has a hosted cluster.
func usable(bridge *v1alpha1.DPFHCPBridge) bool {
	return bridge.Status.KubeconfigSecretRef != nil &&
		meta.IsStatusConditionTrue(bridge.Status.Conditions, v1alpha1.ConditionHostedClusterCreated)
}

func dpuCluster(bridge *v1alpha1.DPFHCPBridge) types.NamespacedName {
	return types.NamespacedName{Namespace: bridge.Spec.DPUClusterRef.Namespace, Name: bridge.Spec.DPUClusterRef.Name}
}

// kubeconfig reads the Secret that HyperShift wrote; nil: there is none.
func (a *Approver) kubeconfig(ctx context.Context, bridge *v1alpha1.DPFHCPBridge) ([]byte, error) {
	key := types.NamespacedName{Namespace: bridge.Namespace, Name: bridge.Status.KubeconfigSecretRef.Name}

	data, err := credential.ReadKubeconfig(ctx, a.Live, key, kubeconfigKey, func(secret *corev1.Secret) error {
		for _, owner := range secret.OwnerReferences {
			if owner.Kind == "HostedCluster" && owner.Name == bridge.Name {
				return nil
			}
		}

		return fmt.Errorf("use Secret %s: %w", key, errNotOurs)
	})
	if errclass.Reason(err, "") == credential.ReasonSecretNotFound {
		return nil, nil
	}

	return data, err
}

func (a *Approver) decideAll(ctx context.Context, bridge *v1alpha1.DPFHCPBridge, cluster *hosted) error {
	pending, err := cluster.pending(ctx)
	if err != nil {
		return err
	}

	for i := range pending {
		object := &pending[i]

		refusal, err := a.decide(ctx, bridge, cluster, object)
		if err != nil {
			return err
		}

		if refusal != nil {
			a.refused(bridge, object, refusal)

			continue
		}

		if err := a.approve(ctx, bridge, cluster, object); err != nil {
			return err
		}
	}

	return nil
}

// decide holds a request against what there is.
func (a *Approver) decide(
	ctx context.Context, bridge *v1alpha1.DPFHCPBridge, cluster *hosted, object *certificatesv1.CertificateSigningRequest,
) (*Refusal, error) {
	name, refusal := Read(object)
	if refusal != nil {
		return refusal, nil
	}

	dpus := dpuCluster(bridge)
	facts := Facts{Namespace: dpus.Namespace, Cluster: dpus.Name, HasAddress: func(address string) string {
		return cluster.holder(ctx, address, name)
	}}

	dpu := &unstructured.Unstructured{}
	dpu.SetGroupVersionKind(DPUKind())

	err := a.Live.Get(ctx, types.NamespacedName{Namespace: dpus.Namespace, Name: name}, dpu)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get DPU %s/%s: %w", dpus.Namespace, name, err)
	}

	if err == nil && dpu.GetDeletionTimestamp() == nil {
		facts.DPU = readDPU(dpu)
	}

	if facts.Node, err = cluster.node(ctx, name); err != nil {
		return nil, err
	}

	return Check(object, facts), nil
}

func (a *Approver) approve(
	ctx context.Context, bridge *v1alpha1.DPFHCPBridge, cluster *hosted, object *certificatesv1.CertificateSigningRequest,
) error {
	now := metav1.NewTime(a.Clock.Now())
	object.Status.Conditions = append(object.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: approvedReason,
		Message:        fmt.Sprintf("It is of a DPU of DPUCluster %s, which asks for it.", dpuCluster(bridge)),
		LastUpdateTime: now, LastTransitionTime: now,
	})

	err := cluster.client.SubResource("approval").Update(ctx, object)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		// Its change or its end comes as news.
		return nil
	}

	if err != nil {
		return fmt.Errorf("approve request %s in hosted cluster of %s: %w", object.Name, client.ObjectKeyFromObject(bridge), err)
	}

	a.decisions.WithLabelValues("approved", "").Inc()
	a.Recorder.Eventf(bridge, object, corev1.EventTypeNormal, eventApproved, actionApprove,
		"approved %s for %s of the hosted cluster", object.Spec.SignerName, object.Name)
	a.Log.InfoContext(ctx, "approved a worker's certificate", "bridge", client.ObjectKeyFromObject(bridge).String(),
		"request", object.Name, "signer", object.Spec.SignerName)

	return nil
}

// refused tells of a request that stays pending, once for each reason.
func (a *Approver) refused(bridge *v1alpha1.DPFHCPBridge, object *certificatesv1.CertificateSigningRequest, refusal *Refusal) {
	a.mu.Lock()

	before := a.told[object.UID]
	if len(a.told) >= remembered {
		clear(a.told)
	}

	a.told[object.UID] = refusal.Reason
	a.mu.Unlock()

	if before == refusal.Reason {
		return
	}

	a.decisions.WithLabelValues("refused", refusal.Reason).Inc()
	// Events of one action about the same two objects are told as one, with the words of the
	// first.
	a.Recorder.Eventf(bridge, object, corev1.EventTypeWarning, eventRefused, actionCheck+refusal.Reason,
		"did not approve %s of the hosted cluster: %s: %s", object.Name, refusal.Reason, refusal.Message)
}
