// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package mac

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/machine"
	"github.com/hyperfleet/hyperfleet/hosts/scaleway"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

const (
	// pollInterval is how often a server that is not ready yet is checked. Delivering a Mac takes
	// minutes.
	pollInterval = 30 * time.Second
	// resourceWait is the delay before the next attempt if stock, quota or a pool is used up.
	resourceWait = 5 * time.Minute
	// orderWait is how long an order without a response may take to appear in the list of servers.
	orderWait = 2 * time.Minute
	// claimWait is the delay between renaming an adopted server and using it. It detects operators
	// of other clusters that rename the same server at the same time.
	claimWait = 10 * time.Second
)

// Provision orders or adopts a server for the machine and waits until the server is delivered. For
// a delivered server it calls Scaleway only while the host is unreachable.
func (k *Kind) Provision(ctx context.Context, host machine.Object) step.Result {
	mac := macOf(host)
	if isDelivered(mac) && mac.Status.UnreachableSince == nil && !k.hasRefusedFirstBoot(mac) {
		return step.Done()
	}

	api, err := k.newClient(ctx, mac)
	if err != nil {
		return resultForError(err)
	}

	if k.hasRefusedFirstBoot(mac) {
		return k.releaseRefusedServer(ctx, api, mac)
	}

	if mac.Status.ServerID == "" {
		if result := k.acquire(ctx, api, mac); !result.IsDone() {
			return result
		}
	}

	server, err := api.Get(ctx, mac.Status.ServerID)
	if scaleway.IsKind(err, scaleway.NotFound) {
		return step.Stall("ServerNotFound", fmt.Sprintf(
			"server %s no longer exists at Scaleway: delete this machine and create another one", mac.Status.ServerID))
	}

	if err != nil {
		return resultForError(err)
	}

	if result := k.claimServer(ctx, api, mac, server); !result.IsDone() {
		return result
	}

	return k.awaitDelivery(ctx, api, mac, server)
}

// isDelivered returns true if the machine has a server with an address.
func isDelivered(mac *v1alpha1.ScalewayAppleSiliconMachine) bool {
	return mac.Status.ServerID != "" && len(mac.Status.Addresses) > 0
}

// resultForError returns the step's result for an error of Scaleway's API.
func resultForError(err error) step.Result { return step.FromError(err, resourceWait) }

// acquire finds, adopts or orders a server, and records its ID.
func (k *Kind) acquire(ctx context.Context, api *scaleway.Client, mac *v1alpha1.ScalewayAppleSiliconMachine) step.Result {
	authorizedKey, err := k.publicKey(ctx, mac)
	if err != nil {
		return resultForError(err)
	}

	// A server gets the keys that are registered when it is installed.
	if err := api.EnsureKey(ctx, "hyperfleet-"+mac.Namespace+"-"+mac.Spec.FleetName, authorizedKey); err != nil {
		return resultForError(err)
	}

	if mac.Spec.AdoptPoolPrefix != "" {
		return k.adopt(ctx, api, mac)
	}

	return k.orderServer(ctx, api, mac)
}

// orderServer orders a server. It orders none if a server with the machine's name exists, or if an
// earlier order may still create one.
func (k *Kind) orderServer(ctx context.Context, api *scaleway.Client, mac *v1alpha1.ScalewayAppleSiliconMachine) step.Result {
	server, found, err := k.findOrTakeOverServer(ctx, api, mac)
	if err != nil {
		return resultForError(err)
	}

	if found {
		return recordServer(ctx, mac, server)
	}

	if result := k.checkPreviousServer(ctx, api, mac); !result.IsDone() {
		return result
	}

	clearHostStatus(mac)

	if orderedAt := mac.Status.OrderedAt; orderedAt != nil {
		if remaining := orderWait - k.Clock.Since(orderedAt.Time); remaining > 0 {
			return step.Wait(remaining, "OrderUnknown", "the response to an order was lost: checking whether the server exists")
		}
	}

	order := scaleway.Order{Name: serverName(mac), Type: mac.Spec.Type}
	if mac.Spec.OS != "" {
		if order.OSID, err = api.FindOS(ctx, mac.Spec.Type, mac.Spec.OS); err != nil {
			return resultForError(err)
		}
	}

	now := metav1.NewTime(k.Clock.Now())
	mac.Status.OrderedAt = &now
	mac.Status.Phase = v1alpha1.HostProvisioning

	if err := step.SaveStatus(ctx); err != nil {
		return step.Fail(err)
	}

	if server, err = api.Order(ctx, order); err != nil {
		if scaleway.IsOrderRejected(err) {
			mac.Status.OrderedAt = nil
		}

		return resultForError(err)
	}

	return recordServer(ctx, mac, server)
}

// recordServer records which server belongs to the machine.
func recordServer(ctx context.Context, mac *v1alpha1.ScalewayAppleSiliconMachine, server scaleway.Server) step.Result {
	mac.Status.ServerID, mac.Status.OrderedAt = server.ID, nil
	mac.Status.BootstrapAttempts, mac.Status.BootstrapRebootIssued = 0, false
	mac.Status.ProviderID = "scw-applesilicon://" + mac.Spec.Zone + "/" + server.ID

	if err := step.SaveStatus(ctx); err != nil {
		return step.Fail(err)
	}

	return step.Done()
}

// adopt chooses a server of the pool that belongs to no machine, and records it. A lock makes sure
// that only one machine at a time does so.
func (k *Kind) adopt(ctx context.Context, api *scaleway.Client, mac *v1alpha1.ScalewayAppleSiliconMachine) step.Result {
	k.adoptLock.Lock()
	defer k.adoptLock.Unlock()

	// If the machine was restored, this renames its server, so that the list below has the server under
	// the name of the machine.
	switch _, found, err := k.findOrTakeOverServer(ctx, api, mac); {
	case err != nil:
		return resultForError(err)
	case !found:
		if result := k.checkPreviousServer(ctx, api, mac); !result.IsDone() {
			return result
		}
	}

	servers, err := api.List(ctx)
	if err != nil {
		return resultForError(err)
	}

	var machines v1alpha1.ScalewayAppleSiliconMachineList
	if err := k.APIReader.List(ctx, &machines); err != nil {
		return step.Fail(fmt.Errorf("list machines: %w", err))
	}

	usedIDs := map[string]bool{}
	for i := range machines.Items {
		usedIDs[machines.Items[i].Status.ServerID] = true
	}

	mac.Status.Phase = v1alpha1.HostAdopting

	i := slices.IndexFunc(servers, func(s scaleway.Server) bool { return s.Name == serverName(mac) && !s.DeletionScheduled })
	if i < 0 {
		i = slices.IndexFunc(servers, func(s scaleway.Server) bool { return !usedIDs[s.ID] && isInPool(mac, s) })
	}

	if i < 0 {
		return step.Wait(resourceWait, "PoolEmpty", fmt.Sprintf(
			"no server of type %s whose name begins with %q is free in %s: order more, or delete machines",
			mac.Spec.Type, mac.Spec.AdoptPoolPrefix, mac.Spec.Zone))
	}

	switch {
	case servers[i].Name != serverName(mac):
		clearHostStatus(mac)

		mac.Status.PoolName = servers[i].Name
	case mac.Status.PoolName == "": // adopted before, but the record in the status was lost
		mac.Status.PoolName = newPoolName(mac, servers[i])
	}

	return recordServer(ctx, mac, servers[i])
}

// newPoolName returns the name for a server of a pool whose own name is unknown.
func newPoolName(mac *v1alpha1.ScalewayAppleSiliconMachine, server scaleway.Server) string {
	return mac.Spec.AdoptPoolPrefix + server.ID
}

// isInPool returns true if the machine may adopt the server.
func isInPool(mac *v1alpha1.ScalewayAppleSiliconMachine, s scaleway.Server) bool {
	return strings.HasPrefix(s.Name, mac.Spec.AdoptPoolPrefix) && !strings.HasPrefix(s.Name, ourPrefix) &&
		s.Type == mac.Spec.Type && s.State == scaleway.Usable && !s.DeletionScheduled
}

// claimServer renames an adopted server for the machine. The server counts as claimed only if it
// still has that name after claimWait, because another operator may rename it in between.
func (k *Kind) claimServer(
	ctx context.Context, api *scaleway.Client, mac *v1alpha1.ScalewayAppleSiliconMachine, server scaleway.Server,
) step.Result {
	if mac.Status.PoolName == "" || isDelivered(mac) {
		return step.Done()
	}

	switch server.Name {
	case serverName(mac):
		return step.Done()
	case mac.Status.PoolName:
		if err := api.Rename(ctx, server.ID, serverName(mac)); err != nil {
			return resultForError(err)
		}

		return step.Wait(claimWait, "Adopting", fmt.Sprintf("server %s of the pool was renamed for this machine", server.ID))
	default:
		mac.Status.ServerID, mac.Status.PoolName, mac.Status.ProviderID = "", "", ""

		return step.Wait(claimWait, "AdoptedByOther", fmt.Sprintf(
			"server %s was renamed to %q by somebody else: choosing another server", server.ID, server.Name))
	}
}

// awaitDelivery waits until the server is delivered, and records its hardware, user and address.
func (k *Kind) awaitDelivery(
	ctx context.Context, api *scaleway.Client, mac *v1alpha1.ScalewayAppleSiliconMachine, server scaleway.Server,
) step.Result {
	if !isDelivered(mac) && mac.Status.Phase != v1alpha1.HostAdopting {
		mac.Status.Phase = v1alpha1.HostProvisioning
	}

	if result := checkUsable(server); !result.IsDone() {
		return result
	}

	if mac.Status.HostCPU == 0 || mac.Status.HostMemoryMB == 0 {
		hardware, err := api.Hardware(ctx, mac.Spec.Type)
		if err != nil {
			return resultForError(err)
		}

		mac.Status.HostCPU, mac.Status.HostMemoryMB = toInt32(hardware.Cores), toInt32(hardware.MemoryMB)
	}

	mac.Status.SSHUser = server.SSHUser
	mac.Status.Addresses = []v1alpha1.HostAddress{{Type: "ExternalIP", Address: server.IP}}

	return step.Done()
}

// checkUsable returns a result that is done if it is possible to log in to the server.
func checkUsable(server scaleway.Server) step.Result {
	message := fmt.Sprintf("server %s is %s at Scaleway", server.ID, server.Status)

	switch {
	case server.State == scaleway.Broken:
		return step.Stall("ServerError", message+": ask Scaleway to fix the server, or delete this machine")
	case server.State == scaleway.Locked:
		return step.Stall("ServerLocked", message+": ask Scaleway why, or delete this machine")
	case server.State == scaleway.Working || server.IP == "":
		return step.Wait(pollInterval, "WaitingForServer", message)
	default:
		return step.Done()
	}
}

func toInt32(n int) int32 { return int32(min(max(n, 0), math.MaxInt32)) } //nolint:gosec // it is in range
