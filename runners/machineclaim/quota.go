// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/tenancy"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/connect"
)

// placements holds the machines that are being placed on clusters with a quota. A quota counts them beside the machines
// of a list of claims, because the list may have been read before their placements were written. So nothing is locked while
// the API server and the hypervisor are called. The zero value is ready to use.
type placements struct {
	mu sync.Mutex
	// sequence counts the starts of lists and the ends of placements, and so orders them.
	sequence uint64
	byQuota  map[quotaKey]*quotaUse
}

// quotaKey identifies the quota of a namespace on a cluster.
type quotaKey struct{ cluster, namespace string }

// quotaUse is what is known of a quota beside the claims.
type quotaUse struct {
	// lists is the number of lists of claims that are being read.
	lists int
	// byClaim are the placements by the UIDs of their claims.
	byClaim map[types.UID]*placement
}

// placement is a machine that is being placed.
type placement struct {
	resources v1alpha1.PlacedResources
	// isWriteSent is true if an earlier attempt may have written its placement.
	isWriteSent bool
	// endedAt is 0 until the placement is written to the claim's status, or the write has failed with an unknown result.
	// After that, it counts for the lists that were started before.
	endedAt uint64
}

// startList must be called before a list of claims is read. It returns the place of the list in the order of lists and
// placements, which reserve needs as quotaList.start. After each call of startList, either reserve or endList must be called.
func (p *placements) startList(key quotaKey) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.byQuota == nil {
		p.byQuota = map[quotaKey]*quotaUse{}
	}

	if p.byQuota[key] == nil {
		p.byQuota[key] = &quotaUse{byClaim: map[types.UID]*placement{}}
	}

	p.byQuota[key].lists++
	p.sequence++

	return p.sequence
}

// endList is called if a list could not be read.
func (p *placements) endList(key quotaKey) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.byQuota[key].lists--
	p.clean(key)
}

// reserve adds the machine of a claim if check accepts the resources of all machines together: of this machine, of those in
// the list, and of those that are being placed and that the list does not show.
func (p *placements) reserve(
	key quotaKey, claim types.UID, own v1alpha1.PlacedResources, list quotaList, check func(tenancy.Usage) error,
) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.clean(key)

	use := p.byQuota[key]
	use.lists--

	var usage tenancy.Usage

	usage.Add(own)

	for uid, resources := range list.placed {
		if uid != claim {
			usage.Add(resources)
		}
	}

	for uid, other := range use.byClaim {
		_, isListed := list.placed[uid]
		if hasEndedBefore := other.endedAt != 0 && other.endedAt < list.start; !hasEndedBefore && !isListed && uid != claim {
			usage.Add(other.resources)
		}
	}

	if err := check(usage); err != nil {
		return err
	}

	_, isWriteSent := use.byClaim[claim]
	use.byClaim[claim] = &placement{resources: own, isWriteSent: isWriteSent}

	return nil
}

// end ends a placement. isWriteSent is true if the placement may have been written.
func (p *placements) end(key quotaKey, claim types.UID, isWriteSent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.clean(key)

	p.sequence++

	if known := p.byQuota[key].byClaim[claim]; isWriteSent || known.isWriteSent {
		known.endedAt = p.sequence
	} else {
		delete(p.byQuota[key].byClaim, claim)
	}
}

// clean deletes the placements that have ended if no list is being read. Later lists show them.
func (p *placements) clean(key quotaKey) {
	use := p.byQuota[key]
	if use.lists > 0 {
		return
	}

	maps.DeleteFunc(use.byClaim, func(_ types.UID, known *placement) bool { return known.endedAt != 0 })

	if len(use.byClaim) == 0 {
		delete(p.byQuota, key)
	}
}

// quotaList has the resources of the placed machines of a namespace on a cluster, by the UIDs of their claims.
type quotaList struct {
	// start is the result of startList.
	start  uint64
	placed map[types.UID]v1alpha1.PlacedResources
}

// quotaShare is the share of a quota that a machine has while it is being placed.
type quotaShare struct {
	placements *placements
	key        quotaKey
	claim      types.UID
	// isWriteSent is true once the placement may have been written.
	isWriteSent bool
}

// release ends the placement. The share may be nil.
func (q *quotaShare) release() {
	if q != nil {
		q.placements.end(q.key, q.claim, q.isWriteSent)
	}
}

// takeQuota checks that spec.allowedNamespaces of the cluster allows the claim's namespace to have the machine. If the
// namespace has a quota, takeQuota returns the share that the machine takes of it. The caller must release the share after
// the placement was written, or has failed.
func (s *scope) takeQuota(ctx context.Context) (*quotaShare, error) {
	entry, err := s.checkAccess(ctx)
	if err != nil || entry == nil || entry.Quota == nil {
		return nil, err
	}

	share := &quotaShare{
		placements: &s.placements, key: quotaKey{s.cluster.Name, s.claim.Namespace}, claim: s.claim.UID,
	}
	list := quotaList{start: s.placements.startList(share.key)}

	if list.placed, err = s.listPlaced(ctx); err != nil {
		s.placements.endList(share.key)

		return nil, err
	}

	err = s.placements.reserve(share.key, share.claim, *newPlacedResources(s.template), list, func(usage tenancy.Usage) error {
		return tenancy.CheckQuota(entry, s.cluster.Name, s.claim.Namespace, usage)
	})
	if err != nil {
		return nil, err
	}

	return share, nil
}

// checkAccess returns the entry of the cluster's allowedNamespaces that allows the machine in the claim's
// namespace. The entry is nil if the cluster does not restrict namespaces.
func (s *scope) checkAccess(ctx context.Context) (*v1alpha1.NamespaceAccess, error) {
	entry, err := tenancy.FindEntry(s.cluster, s.claim.Namespace, tenancy.NewLabelsFunc(ctx, s.Live, s.claim.Namespace))
	if err != nil {
		return nil, err
	}

	return entry, tenancy.CheckTemplate(entry, s.cluster, s.template)
}

// recheckAccess repeats the check before the machine is created and started, because its template may have
// changed since it was placed, and a person may have written the placement to the status. It returns Done
// if the machine is allowed.
func (s *scope) recheckAccess(ctx context.Context) step.Result {
	_, err := s.checkAccess(ctx)

	switch {
	case err == nil:
		return step.Done()
	case errclass.ClassOf(err) == errclass.Configuration:
		return step.Wait(resyncInterval, errclass.ReasonOf(err, tenancy.ReasonNamespace), err.Error())
	default:
		return connect.NewErrorResult(err, pollInterval, tenancy.ReasonNamespace)
	}
}

// listPlaced returns the resources of the machines of the claim's namespace on its cluster, by the UIDs of their claims.
func (s *scope) listPlaced(ctx context.Context) (map[types.UID]v1alpha1.PlacedResources, error) {
	var claims v1alpha1.MachineClaimList

	// The cache may not have the claims that were placed just now.
	if err := s.Live.List(ctx, &claims, client.InNamespace(s.claim.Namespace)); err != nil {
		return nil, fmt.Errorf("list machine claims of namespace %s: %w", s.claim.Namespace, err)
	}

	out := map[types.UID]v1alpha1.PlacedResources{}

	for i := range claims.Items {
		vm := claims.Items[i].Status.VMRef
		if vm == nil || vm.HypervisorCluster != s.cluster.Name {
			continue
		}

		// A machine has the resources that it was placed with, even if its template has changed. An older operator did not
		// record them.
		out[claims.Items[i].UID] = *cmp.Or(vm.Resources, &v1alpha1.PlacedResources{})
	}

	return out, nil
}

// newPlacedResources returns the resources of a template's machine that a quota counts.
func newPlacedResources(template *v1alpha1.HypervisorMachineTemplate) *v1alpha1.PlacedResources {
	return &v1alpha1.PlacedResources{CPU: template.Spec.Resources.CPU, Memory: template.Spec.Resources.Memory}
}
