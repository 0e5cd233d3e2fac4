// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/tenancy"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/objects"
	"github.com/hyperfleet/hyperfleet/kit/trigger"
	"github.com/hyperfleet/hyperfleet/networking/claimstatus"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

const (
	// passTimeout bounds one pass.
	passTimeout = time.Minute
	// notAllowedRetry is how soon labels of a namespace, which are not watched, are read again.
	notAllowedRetry = time.Minute

	kindTemplate = "HypervisorMachineTemplate"
	kindClaim    = "MachineClaim"
)

// Templates puts the pools of HypervisorMachineTemplates into the address registry, and says on the
// templates how that went.
type Templates struct {
	Client client.Client
	// Live reads from the API server itself: namespaces are not cached.
	Live      client.Reader
	Addresses *pools.AddressRegistry
	Registry  *Registry
	Clock     clock.WithTicker

	changed trigger.Source
}

func (t *Templates) writer() *claimstatus.Writer {
	return &claimstatus.Writer{Client: t.Client, Clock: t.Clock, Owner: fieldOwner}
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=hypervisormachinetemplates;runnerpools,verbs=list;watch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=hypervisorclusters,verbs=get;list;watch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=hypervisormachinetemplates/status,verbs=patch
//+kubebuilder:rbac:groups="",resources=namespaces,verbs=get

// SetupWithManager adds the controller to a manager.
func (t *Templates) SetupWithManager(mgr ctrl.Manager) error {
	changed := builder.WithPredicates(predicate.GenerationChangedPredicate{})

	err := ctrl.NewControllerManagedBy(mgr).
		Named("addresspool").
		For(&v1alpha1.HypervisorMachineTemplate{}, changed).
		Watches(&v1alpha1.HypervisorCluster{}, handler.EnqueueRequestsFromMapFunc(t.ofCluster), changed).
		Watches(&v1alpha1.RunnerPool{}, handler.EnqueueRequestsFromMapFunc(t.ofRunnerPool), changed).
		WatchesRawSource(t.Addresses.Gate(t.Clock)).
		WatchesRawSource(&t.changed).
		WithOptions(controller.Options{ReconciliationTimeout: passTimeout}).
		Complete(t)
	if err != nil {
		return fmt.Errorf("add controller addresspool: %w", err)
	}

	return nil
}

// ofCluster wakes the templates of a cluster: its default network is theirs.
func (t *Templates) ofCluster(ctx context.Context, cluster client.Object) []reconcile.Request {
	return objects.Requests(ctx, t.Client, &v1alpha1.HypervisorMachineTemplateList{},
		func(template *v1alpha1.HypervisorMachineTemplate) bool {
			return template.Spec.HypervisorClusterRef.Name == cluster.GetName()
		})
}

// ofRunnerPool wakes the templates that share the pool of addresses of a RunnerPool.
func (t *Templates) ofRunnerPool(_ context.Context, obj client.Object) []reconcile.Request {
	pool, ok := obj.(*v1alpha1.RunnerPool)
	if !ok {
		return nil
	}

	template := types.NamespacedName{Namespace: pool.Namespace, Name: pool.Spec.TemplateRef.Name}
	sharers := []types.NamespacedName{template}

	if entry, there := t.Registry.Of(template); there {
		sharers = t.Registry.Sharers(entry.Pool)
	}

	out := make([]reconcile.Request, 0, len(sharers))
	for _, name := range sharers {
		out = append(out, reconcile.Request{NamespacedName: name})
	}

	return out
}

// Reconcile looks at one template.
func (t *Templates) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var template v1alpha1.HypervisorMachineTemplate

	err := t.Client.Get(ctx, req.NamespacedName, &template)
	if apierrors.IsNotFound(err) {
		t.Registry.Remove(req.NamespacedName)

		return reconcile.Result{}, nil
	}

	if err != nil {
		return reconcile.Result{}, fmt.Errorf("get template: %w", err)
	}

	if template.Spec.Network.AddressPool() == nil {
		t.Registry.Remove(req.NamespacedName)

		return reconcile.Result{}, t.clear(ctx, &template)
	}

	var cluster v1alpha1.HypervisorCluster

	name := template.Spec.HypervisorClusterRef.Name

	err = t.Client.Get(ctx, client.ObjectKey{Name: name}, &cluster)
	if apierrors.IsNotFound(err) {
		t.Registry.Remove(req.NamespacedName)

		return reconcile.Result{}, t.report(ctx, &template, metav1.Condition{
			Type: v1alpha1.ConditionAddressPoolReady, Status: metav1.ConditionFalse, Reason: "ClusterNotFound",
			Message: fmt.Sprintf("there is no HypervisorCluster %q: the pool's network is unknown", name),
		})
	}

	if err != nil {
		return reconcile.Result{}, fmt.Errorf("get cluster %s: %w", name, err)
	}

	// A pool that is not allowed must not be in the way of others.
	if err := allowed(ctx, t.Live, &template, &cluster); errclass.Of(err) == errclass.Configuration {
		t.Registry.Remove(req.NamespacedName)

		return reconcile.Result{RequeueAfter: notAllowedRetry}, t.report(ctx, &template, metav1.Condition{
			Type: v1alpha1.ConditionAddressPoolReady, Status: metav1.ConditionFalse,
			Reason: errclass.Reason(err, tenancy.ReasonAddress), Message: err.Error(),
		})
	} else if err != nil {
		return reconcile.Result{}, err
	}

	return reconcile.Result{}, t.set(ctx, &template, &cluster)
}

// allowed makes sure that the cluster lets the template's namespace have what it names. An
// error of class Configuration says what it may have.
func allowed(
	ctx context.Context, live client.Reader, template *v1alpha1.HypervisorMachineTemplate, cluster *v1alpha1.HypervisorCluster,
) error {
	entry, err := tenancy.Find(cluster, template.Namespace, tenancy.LabelsOf(ctx, live, template.Namespace))
	if err != nil {
		return err
	}

	return tenancy.Check(entry, cluster, template)
}

// set puts the template's pool into the address registry and reports.
func (t *Templates) set(
	ctx context.Context, template *v1alpha1.HypervisorMachineTemplate, cluster *v1alpha1.HypervisorCluster,
) error {
	entry := t.Registry.Set(template, cluster, t.changed.For)
	ready := metav1.Condition{
		Type: v1alpha1.ConditionAddressPoolReady, Status: metav1.ConditionTrue, Reason: "Ready",
		Message: fmt.Sprintf("addresses for %d machines on network %s", entry.Machines, entry.Network),
	}

	if entry.Reason != "" {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, entry.Reason, entry.Message

		return t.report(ctx, template, ready)
	}

	few, err := t.compare(ctx, entry)
	if err != nil {
		return err
	}

	return t.report(ctx, template, ready, few)
}

// compare warns of fewer addresses than machines there may be.
func (t *Templates) compare(ctx context.Context, entry Entry) (metav1.Condition, error) {
	few := metav1.Condition{
		Type: v1alpha1.ConditionAddressesFewerThanMachines, Status: metav1.ConditionFalse, Reason: "Enough",
	}

	var list v1alpha1.RunnerPoolList
	if err := t.Client.List(ctx, &list); err != nil {
		return few, fmt.Errorf("list runner pools: %w", err)
	}

	sharers := t.Registry.Sharers(entry.Pool)
	most := uint64(0)

	for i := range list.Items {
		pool := &list.Items[i]
		if slices.Contains(sharers, types.NamespacedName{Namespace: pool.Namespace, Name: pool.Spec.TemplateRef.Name}) {
			most += uint64(max(0, pool.Spec.Scaling.MaxReplicas))
		}
	}

	if entry.Machines < most {
		few.Status, few.Reason = metav1.ConditionTrue, "TooFewAddresses"
		few.Message = fmt.Sprintf("the addresses suffice for %d machines, and the RunnerPools that use them may have %d: "+
			"add addresses to network.static.pool, or lower maxReplicas", entry.Machines, most)
	}

	return few, nil
}

func (t *Templates) report(
	ctx context.Context, template *v1alpha1.HypervisorMachineTemplate, conditions ...metav1.Condition,
) error {
	warned := meta.FindStatusCondition(template.Status.Conditions, v1alpha1.ConditionAddressesFewerThanMachines)
	same := len(conditions) > 1 || warned == nil

	for _, condition := range conditions {
		same = same && claimstatus.Says(template, condition)
	}

	if same {
		return nil
	}

	return claimstatus.IgnoreGone(t.writer().Apply(ctx, template, map[string]any{}, conditions...))
}

// clear takes the conditions away.
func (t *Templates) clear(ctx context.Context, template *v1alpha1.HypervisorMachineTemplate) error {
	if meta.FindStatusCondition(template.Status.Conditions, v1alpha1.ConditionAddressPoolReady) == nil {
		return nil
	}

	return claimstatus.IgnoreGone(t.writer().Apply(ctx, template, map[string]any{}))
}
