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
	// lookAgain is how often a server that works is looked at: a Mac takes minutes.
	lookAgain = 30 * time.Second
	// resourceWait is for how long nothing is tried where stock, quota or a pool is used up.
	resourceWait = 5 * time.Minute
	// orderWait is how long an order that got no answer may take to show in the list.
	orderWait = 2 * time.Minute
	// claimWait is how long a server that was named as ours is left before it is believed:
	// for operators of other clusters that name the same one at the same time.
	claimWait = 10 * time.Second
)

// Provision has a server for the machine, and waits until it is delivered. Once it is,
// Scaleway is asked again only while the host can't be reached.
func (k *Kind) Provision(ctx context.Context, host machine.Object) step.Result {
	mac := macOf(host)
	if delivered(mac) && mac.Status.UnreachableSince == nil && !k.refused(mac) {
		return step.Done()
	}

	api, err := k.api(ctx, mac)
	if err != nil {
		return outcome(err)
	}

	if k.refused(mac) {
		return k.giveUp(ctx, api, mac)
	}

	if mac.Status.ServerID == "" {
		if result := k.acquire(ctx, api, mac); !result.IsDone() {
			return result
		}
	}

	server, err := api.Get(ctx, mac.Status.ServerID)
	if scaleway.Is(err, scaleway.NotFound) {
		return step.Stall("ServerGone", fmt.Sprintf(
			"server %s is not at Scaleway any more: delete this machine and make another one", mac.Status.ServerID))
	}

	if err != nil {
		return outcome(err)
	}

	if result := k.claim(ctx, api, mac, server); !result.IsDone() {
		return result
	}

	return k.await(ctx, api, mac, server)
}

// delivered says whether the machine has a server with an address.
func delivered(mac *v1alpha1.ScalewayAppleSiliconMachine) bool {
	return mac.Status.ServerID != "" && len(mac.Status.Addresses) > 0
}

// outcome is what an error asks for.
func outcome(err error) step.Result { return step.ForError(err, resourceWait) }

// acquire finds, adopts or orders a server, and puts its id on record.
func (k *Kind) acquire(ctx context.Context, api *scaleway.Client, mac *v1alpha1.ScalewayAppleSiliconMachine) step.Result {
	public, err := k.publicKey(ctx, mac)
	if err != nil {
		return outcome(err)
	}

	// Servers get the keys that are there when they are installed.
	if err := api.EnsureKey(ctx, "hyperfleet-"+mac.Namespace+"-"+mac.Spec.FleetName, public); err != nil {
		return outcome(err)
	}

	if mac.Spec.AdoptPoolPrefix != "" {
		return k.adopt(ctx, api, mac)
	}

	return k.order(ctx, api, mac)
}

// order orders a server, unless there is one by the machine's name, or may be.
func (k *Kind) order(ctx context.Context, api *scaleway.Client, mac *v1alpha1.ScalewayAppleSiliconMachine) step.Result {
	server, found, err := api.Find(ctx, serverName(mac))
	if err != nil {
		return outcome(err)
	}

	if found {
		return record(ctx, mac, server)
	}

	if at := mac.Status.OrderedAt; at != nil {
		if rest := orderWait - k.Clock.Since(at.Time); rest > 0 {
			return step.Wait(rest, "OrderUnknown", "an order got no answer: looking whether it was carried out")
		}
	}

	order := scaleway.Order{Name: serverName(mac), Type: mac.Spec.Type}
	if mac.Spec.OS != "" {
		if order.OSID, err = api.OS(ctx, mac.Spec.Type, mac.Spec.OS); err != nil {
			return outcome(err)
		}
	}

	now := metav1.NewTime(k.Clock.Now())
	mac.Status.OrderedAt = &now
	mac.Status.Phase = v1alpha1.HostProvisioning

	if err := step.Save(ctx); err != nil {
		return step.Fail(err)
	}

	if server, err = api.Order(ctx, order); err != nil {
		if scaleway.Decided(err) {
			mac.Status.OrderedAt = nil
		}

		return outcome(err)
	}

	return record(ctx, mac, server)
}

// record writes down which server is the machine's.
func record(ctx context.Context, mac *v1alpha1.ScalewayAppleSiliconMachine, server scaleway.Server) step.Result {
	mac.Status.ServerID, mac.Status.OrderedAt = server.ID, nil
	mac.Status.BootstrapAttempts, mac.Status.BootstrapRebootIssued = 0, false
	mac.Status.ProviderID = "scw-applesilicon://" + mac.Spec.Zone + "/" + server.ID

	if err := step.Save(ctx); err != nil {
		return step.Fail(err)
	}

	return step.Done()
}

// adopt chooses a server of the pool that no machine has, and puts it on record. One
// machine at a time does.
func (k *Kind) adopt(ctx context.Context, api *scaleway.Client, mac *v1alpha1.ScalewayAppleSiliconMachine) step.Result {
	k.adopting.Lock()
	defer k.adopting.Unlock()

	servers, err := api.List(ctx)
	if err != nil {
		return outcome(err)
	}

	var all v1alpha1.ScalewayAppleSiliconMachineList
	if err := k.Live.List(ctx, &all); err != nil {
		return step.Fail(fmt.Errorf("list machines: %w", err))
	}

	taken := map[string]bool{}
	for i := range all.Items {
		taken[all.Items[i].Status.ServerID] = true
	}

	mac.Status.Phase = v1alpha1.HostAdopting

	i := slices.IndexFunc(servers, func(s scaleway.Server) bool { return s.Name == serverName(mac) && !s.Leaving })
	if i < 0 {
		i = slices.IndexFunc(servers, func(s scaleway.Server) bool { return !taken[s.ID] && inPool(mac, s) })
	}

	if i < 0 {
		return step.Wait(resourceWait, "PoolEmpty", fmt.Sprintf(
			"no server of type %s whose name begins with %q is free in %s: order more, or delete machines",
			mac.Spec.Type, mac.Spec.AdoptPoolPrefix, mac.Spec.Zone))
	}

	mac.Status.PoolName = servers[i].Name
	if servers[i].Name == serverName(mac) { // taken before, and then the record was lost
		mac.Status.PoolName = mac.Spec.AdoptPoolPrefix + servers[i].ID
	}

	return record(ctx, mac, servers[i])
}

// inPool says whether a server is one that the machine may adopt.
func inPool(mac *v1alpha1.ScalewayAppleSiliconMachine, s scaleway.Server) bool {
	return strings.HasPrefix(s.Name, mac.Spec.AdoptPoolPrefix) && !strings.HasPrefix(s.Name, ourPrefix) &&
		s.Type == mac.Spec.Type && s.State == scaleway.Usable && !s.Leaving
}

// claim names an adopted server as the machine's, and believes that only when it still is
// after a while. Another operator may have named it as its own in between.
func (k *Kind) claim(
	ctx context.Context, api *scaleway.Client, mac *v1alpha1.ScalewayAppleSiliconMachine, server scaleway.Server,
) step.Result {
	if mac.Status.PoolName == "" || delivered(mac) {
		return step.Done()
	}

	switch server.Name {
	case serverName(mac):
		return step.Done()
	case mac.Status.PoolName:
		if err := api.Rename(ctx, server.ID, serverName(mac)); err != nil {
			return outcome(err)
		}

		return step.Wait(claimWait, "Adopting", fmt.Sprintf("server %s of the pool was named as this machine's", server.ID))
	default:
		mac.Status.ServerID, mac.Status.PoolName, mac.Status.ProviderID = "", "", ""

		return step.Wait(claimWait, "AdoptedByOther", fmt.Sprintf(
			"server %s was named %q by somebody else: looking for another one", server.ID, server.Name))
	}
}

// await waits until the server is delivered, and notes what the host needs of it.
func (k *Kind) await(
	ctx context.Context, api *scaleway.Client, mac *v1alpha1.ScalewayAppleSiliconMachine, server scaleway.Server,
) step.Result {
	if !delivered(mac) && mac.Status.Phase != v1alpha1.HostAdopting {
		mac.Status.Phase = v1alpha1.HostProvisioning
	}

	if result := usable(server); !result.IsDone() {
		return result
	}

	if mac.Status.HostCPU == 0 || mac.Status.HostMemoryMB == 0 {
		hardware, err := api.Hardware(ctx, mac.Spec.Type)
		if err != nil {
			return outcome(err)
		}

		mac.Status.HostCPU, mac.Status.HostMemoryMB = clamp(hardware.Cores), clamp(hardware.MemoryMB)
	}

	mac.Status.SSHUser = server.SSHUser
	mac.Status.Addresses = []v1alpha1.HostAddress{{Type: "ExternalIP", Address: server.IP}}

	return step.Done()
}

// usable says whether there is a server to log in to.
func usable(server scaleway.Server) step.Result {
	said := fmt.Sprintf("server %s is %s at Scaleway", server.ID, server.Status)

	switch {
	case server.State == scaleway.Broken:
		return step.Stall("ServerBroken", said+": have it fixed there, or delete this machine")
	case server.State == scaleway.Locked:
		return step.Stall("ServerLocked", said+": ask Scaleway why, or delete this machine")
	case server.State == scaleway.Working || server.IP == "":
		return step.Wait(lookAgain, "ServerWorking", said)
	default:
		return step.Done()
	}
}

func clamp(n int) int32 { return int32(min(max(n, 0), math.MaxInt32)) } //nolint:gosec // it is in range
