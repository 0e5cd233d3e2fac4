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
)

const (
	leasePrefix = "hyperfleet-"
	// skew is how far clocks may be apart.
	skew = 30 * time.Second
)

// leader is an operator, as its Lease tells of it.
type leader struct {
	lease, holder string
	renewed       time.Time
	fresh         bool
}

// leaders reads who runs which area. It is not known where the Leases may not be read.
func (d *doctor) leaders(ctx context.Context) (map[string][]leader, bool) {
	leases := &coordinationv1.LeaseList{}
	if err := d.client.List(ctx, leases, client.InNamespace(d.operator)); err != nil {
		d.unseen("operators", err)

		return nil, false
	}

	out := map[string][]leader{}

	for i := range leases.Items {
		lease := &leases.Items[i]

		areas, ok := strings.CutPrefix(lease.Name, leasePrefix)
		names := strings.Split(areas, "-")

		// Other programs have Leases that begin in the same way.
		if !ok || slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(config.Areas(), name) }) {
			continue
		}

		found := leader{lease: d.operator + "/" + lease.Name, holder: ptr.Deref(lease.Spec.HolderIdentity, "")}
		if lease.Spec.RenewTime != nil {
			found.renewed = lease.Spec.RenewTime.Time
		}

		lasts := time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second
		found.fresh = found.holder != "" && d.now.Before(found.renewed.Add(lasts+skew))

		for _, name := range names {
			out[name] = append(out[name], found)
		}
	}

	return out, true
}

// asleep says of which Deployment of an area no pod is ready, and where it is told why; empty if that
// is not known.
func (d *doctor) asleep(ctx context.Context, area string) string {
	name := client.ObjectKey{Namespace: d.operator, Name: leasePrefix + area}

	pods := &appsv1.Deployment{}
	if err := d.client.Get(ctx, name, pods); err != nil || pods.Status.ReadyReplicas > 0 || ptr.Deref(pods.Spec.Replicas, 1) == 0 {
		return ""
	}

	return fmt.Sprintf("Deployment %s has %d of %d pods ready: kubectl describe pods -n %s -l app.kubernetes.io/name=%s",
		name, pods.Status.ReadyReplicas, ptr.Deref(pods.Spec.Replicas, 1), d.operator, name.Name)
}

// led says whether an operator runs an area of which there are objects.
func (d *doctor) led(ctx context.Context, area string, leaders []leader, objects int) {
	subject := "operator of " + area

	fresh := slices.DeleteFunc(slices.Clone(leaders), func(l leader) bool { return !l.fresh })

	switch {
	case len(fresh) > 1:
		d.report.addf(Problem, subject, "two run it, %s with the Lease %s and %s with the Lease %s: "+
			"leave the area out of the controllers of one of them", fresh[0].holder, fresh[0].lease, fresh[1].holder, fresh[1].lease)

		return
	case len(fresh) == 1:
		d.report.addf(Fine, subject, "%s runs it", fresh[0].holder)

		return
	}

	asleep := d.asleep(ctx, area)

	switch {
	case asleep != "":
		d.report.addf(Problem, subject, "none runs it: %s", asleep)
	case objects == 0:
		d.report.addf(Fine, subject, "none, and there is nothing for it to do")
	case len(leaders) > 0:
		last := slices.MaxFunc(leaders, func(a, b leader) int { return a.renewed.Compare(b.renewed) })
		d.report.addf(Problem, subject, "none runs it: %s renewed the Lease %s last %s ago; start it, and look at why it ended: "+
			"kubectl logs -n %s --previous -l app.kubernetes.io/part-of=hyperfleet",
			last.holder, last.lease, duration.HumanDuration(d.now.Sub(last.renewed)), d.operator)
	default:
		d.report.addf(Problem, subject, "none has ever run it in namespace %s (--operator-namespace), and it has %s to look after: "+
			"%s", d.operator, english.Plural(objects, "object", ""), fixArea(area))
	}
}
