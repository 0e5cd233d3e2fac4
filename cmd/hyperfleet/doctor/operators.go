// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/shards"
)

const (
	// clockSkew is the tolerated difference between the clocks of this machine and of the operator.
	clockSkew = 30 * time.Second
)

// leader is an operator according to its Lease. isFresh is true if the Lease has a holder and has not expired.
type leader struct {
	lease, holder string
	renewTime     time.Time
	isFresh       bool
	// namespaces are the only namespaces that the operator serves if isLimited is true.
	namespaces []string
	isLimited  bool
}

// serves reports whether the operator serves the namespace.
func (l leader) serves(namespace string) bool {
	return !l.isLimited || slices.Contains(l.namespaces, namespace)
}

// findOverlap returns a namespace that both operators serve, and false if there is none. The namespace is empty if both
// operators serve all namespaces.
func findOverlap(a, b leader) (string, bool) {
	if !a.isLimited {
		a, b = b, a
	}

	if !a.isLimited {
		return "", true
	}

	index := slices.IndexFunc(a.namespaces, b.serves)
	if index < 0 {
		return "", false
	}

	return a.namespaces[index], true
}

// listLeaders returns the leaders of each area. It returns false, and reports a finding, if it cannot list
// the Leases.
func (d *doctor) listLeaders(ctx context.Context) (map[string][]leader, bool) {
	leases := &coordinationv1.LeaseList{}
	if err := d.client.List(ctx, leases, client.InNamespace(d.operatorNamespace)); err != nil {
		d.reportUnreadable("operators", err)

		return nil, false
	}

	out := map[string][]leader{}

	for i := range leases.Items {
		lease := &leases.Items[i]

		names, _, ok := shards.ParseLeaseName(lease.Name)
		if !ok {
			continue
		}

		l := leader{lease: d.operatorNamespace + "/" + lease.Name, holder: ptr.Deref(lease.Spec.HolderIdentity, "")}
		l.namespaces, l.isLimited = shards.ParseLabels(lease.Labels)

		if lease.Spec.RenewTime != nil {
			l.renewTime = lease.Spec.RenewTime.Time
		}

		leaseDuration := time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second
		l.isFresh = l.holder != "" && d.now.Before(l.renewTime.Add(leaseDuration+clockSkew))

		for _, name := range names {
			out[name] = append(out[name], l)
		}
	}

	return out, true
}

// describeUnready describes the first of the operators' Deployments of an area that has no ready pod, with the command that
// shows the cause. It returns "" if each Deployment has one or has 0 replicas, or if they cannot be read.
func (d *doctor) describeUnready(ctx context.Context, area string) string {
	deployments := &appsv1.DeploymentList{}
	if err := d.client.List(ctx, deployments, client.InNamespace(d.operatorNamespace)); err != nil {
		return ""
	}

	for i := range deployments.Items {
		deployment := &deployments.Items[i]

		// The Deployments of operators that divide the namespaces have the name of the shard, too.
		rest, ok := strings.CutPrefix(deployment.Name, config.LeasePrefix+area)
		if !ok || rest != "" && rest[0] != '-' || deployment.Status.ReadyReplicas > 0 || ptr.Deref(deployment.Spec.Replicas, 1) == 0 {
			continue
		}

		return fmt.Sprintf("Deployment %s has %d of %d pods ready: to find out why, "+
			"run `kubectl describe pods -n %s -l app.kubernetes.io/name=%s`", client.ObjectKeyFromObject(deployment),
			deployment.Status.ReadyReplicas, ptr.Deref(deployment.Spec.Replicas, 1), d.operatorNamespace, deployment.Name)
	}

	return ""
}

// checkShards reports whether each namespace is served by one of the operators that run an area. namespaces are those
// with objects of the area.
func (d *doctor) checkShards(subject string, fresh []leader, namespaces []string) {
	for i, l := range fresh {
		for _, other := range fresh[:i] {
			shared, ok := findOverlap(other, l)
			if !ok {
				continue
			}

			where, fix := "", "the area from the controllers"
			if shared != "" {
				where, fix = " in namespace "+shared, "the namespace from the namespaces, or the area from the controllers,"
			}

			d.report.addf(Problem, subject, "two operators run the area%s, %s with Lease %s and %s with Lease %s: "+
				"remove %s of one of them", where, other.holder, other.lease, l.holder, l.lease, fix)

			return
		}
	}

	unserved := slices.DeleteFunc(slices.Clone(namespaces), func(namespace string) bool {
		return slices.ContainsFunc(fresh, func(l leader) bool { return l.serves(namespace) })
	})

	switch {
	case len(unserved) > 0:
		d.report.addf(Problem, subject, "no running operator serves %s %s: add the namespace to namespaces in the configuration "+
			"of an operator, or start the operator that has it", english.PluralWord(len(unserved), "namespace", ""),
			english.WordSeries(unserved, "and"))
	case len(fresh) == 1:
		d.report.addf(OK, subject, "%s is the leader", fresh[0].holder)
	default:
		d.report.addf(OK, subject, "%d operators share the namespaces", len(fresh))
	}
}

// checkOperator reports whether exactly one operator runs an area in each namespace. objects is the number of objects of
// the area: if it is 0, the area needs no operator. namespaces are those with objects of the area.
func (d *doctor) checkOperator(ctx context.Context, area string, leaders []leader, objects int, namespaces []string) {
	subject := "operator of " + area

	fresh := slices.DeleteFunc(slices.Clone(leaders), func(l leader) bool { return !l.isFresh })

	if len(fresh) > 0 {
		d.checkShards(subject, fresh, namespaces)

		return
	}

	unready := d.describeUnready(ctx, area)

	switch {
	case unready != "":
		d.report.addf(Problem, subject, "not running: %s", unready)
	case objects == 0:
		d.report.addf(OK, subject, "not running, and not needed because the area has no objects")
	case len(leaders) > 0:
		last := slices.MaxFunc(leaders, func(a, b leader) int { return a.renewTime.Compare(b.renewTime) })
		d.report.addf(Problem, subject, "not running: %s last renewed Lease %s %s ago; start the operator, and to find out why it "+
			"stopped, run `kubectl logs -n %s --previous -l app.kubernetes.io/part-of=hyperfleet`",
			last.holder, last.lease, duration.HumanDuration(d.now.Sub(last.renewTime)), d.operatorNamespace)
	default:
		d.report.addf(Problem, subject, "not running: no operator has ever run the area in namespace %s (--operator-namespace), "+
			"and the area has %s: %s", d.operatorNamespace, english.Plural(objects, "object", ""), areaFix(area))
	}
}
