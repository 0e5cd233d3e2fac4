// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/claimstatus"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

// inUseTime is how long an address is not allocated after a machine without a claim was found to have it.
const inUseTime = time.Minute

// inUseOwnerPrefix and an address form the owner under which the address registry records an address that a
// machine without a claim has.
const inUseOwnerPrefix = "a machine without a claim that has "

// inUseAddresses holds addresses that another machine uses although no claim has them, because the claim of that machine
// was lost in a restore. The runners area finds such a machine when it places a machine with one of its
// addresses, and deletes it when its job has ended.
type inUseAddresses struct {
	mu sync.Mutex
	// since is when an address was found to be in use, by its owner in the address registry.
	since map[string]time.Time
}

// hasAddressInUse returns true if the claim has no machine, and the runners area has found that another machine has one
// of the claim's addresses. The message of the condition begins with the addresses that the runners area tried.
// If the claim has other addresses by now, hasAddressInUse returns false.
func hasAddressInUse(claim *v1alpha1.MachineClaim) bool {
	placed := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionPlaced)
	addresses := recordedAddresses(claim)

	return placed != nil && placed.Reason == hypervisor.ReasonAddressInUse && claim.Status.VMRef == nil &&
		len(addresses) > 0 && strings.HasPrefix(placed.Message, strings.Join(addresses, " ")+": ") && !hasStarted(claim)
}

// replaceAddresses takes the addresses away from a claim without a machine, so that it gets others.
func (c *ClaimReconciler) replaceAddresses(ctx context.Context, claim *v1alpha1.MachineClaim) error {
	taken, err := newMark(claim)
	if err != nil {
		return err
	}

	isRevoked, err := c.revoke(ctx, OwnerKey(claim))
	if err != nil || !isRevoked {
		return claimstatus.IgnoreGone(err) // after a conflict, an event for the newer object follows
	}

	entry := c.Registry.entryOfClaim(claim)

	for _, address := range taken.addresses {
		owner := inUseOwnerPrefix + taken.network + " " + address.String()

		// If another claim has got it meanwhile, the runners area finds that, too.
		if c.Addresses.Restore(taken.network, alloc.Assignment{Owner: owner, Pool: entry.Pool, Address: address}) == nil {
			c.inUse.add(owner, c.Clock.Now())
		}
	}

	return nil
}

func (u *inUseAddresses) add(owner string, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()

	if u.since == nil {
		u.since = map[string]time.Time{}
	}

	u.since[owner] = now
}

// releaseExpired releases the addresses whose machines may be deleted by now.
func (u *inUseAddresses) releaseExpired(addresses *pools.AddressRegistry, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()

	for owner, since := range u.since {
		if now.Sub(since) >= inUseTime {
			delete(u.since, owner)
			addresses.Release(owner)
		}
	}
}

// retryAfter returns the delay before a claim that found its pool exhausted is reconciled again.
func (u *inUseAddresses) retryAfter() time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()

	if len(u.since) > 0 {
		return inUseTime
	}

	return exhaustedRetry
}
