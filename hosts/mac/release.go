// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package mac

import (
	"context"
	"fmt"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/machine"
	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/scaleway"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// rebootAfter is how many first boots a host may refuse before it is restarted, once.
const rebootAfter = 3

// BeforeBoot restarts a server that refused some first boots, once.
func (k *Kind) BeforeBoot(ctx context.Context, host machine.Object) step.Result {
	mac := macOf(host)
	if mac.Status.BootstrapAttempts < rebootAfter {
		return step.Done()
	}

	api, err := k.api(ctx, mac)
	if err != nil {
		return outcome(err)
	}

	server, err := api.Get(ctx, mac.Status.ServerID)
	if err != nil {
		return outcome(err)
	}

	if result := usable(server); !result.IsDone() || mac.Status.BootstrapRebootIssued {
		return result
	}

	if err := api.Reboot(ctx, server.ID); err != nil {
		return waitFor(err, server)
	}

	mac.Status.BootstrapRebootIssued = true

	return step.Wait(lookAgain, "Rebooting", fmt.Sprintf(
		"server %s refused %d first boots: it was restarted", server.ID, mac.Status.BootstrapAttempts))
}

// refused says whether the machine has failed for good with its first boot, and with the
// configuration that it would get now.
func (k *Kind) refused(mac *v1alpha1.ScalewayAppleSiliconMachine) bool {
	return mac.Status.FailureReason == v1alpha1.FailureBootstrapExceededRetries && !mac.Status.Bootstrapped &&
		(k.hash == "" || mac.Status.FailedHostConfigHash == k.hash)
}

// giveUp wipes a server that refused too many first boots and gives it back. The machine
// gets another one when its failureReason is cleared, or for another configuration.
func (k *Kind) giveUp(ctx context.Context, api *scaleway.Client, mac *v1alpha1.ScalewayAppleSiliconMachine) step.Result {
	const advice = "; the server was given back: clear status.failureReason to have another one"

	if mac.Status.ServerID != "" {
		if result := k.giveBack(ctx, api, mac); !result.IsDone() {
			return result
		}

		mac.Status.FailureMessage += advice
		mac.Status.Addresses, mac.Status.SSHHostKey = nil, ""
	}

	mac.Status.Phase = v1alpha1.HostFailed

	return step.Stall(mac.Status.FailureReason, mac.Status.FailureMessage)
}

// Leave has nothing to do: Release wipes the server.
func (k *Kind) Leave(machine.Object) (plan.Part, bool) { return plan.Part{}, false }

// Release gives the server back. It needs the API key: an object whose Secret is gone
// stays, so that nobody pays for a server that nobody knows of.
func (k *Kind) Release(ctx context.Context, host machine.Object) step.Result {
	mac := macOf(host)

	if mac.Status.ServerID == "" && mac.Status.OrderedAt == nil {
		return step.Done()
	}

	api, err := k.api(ctx, mac)
	if err != nil {
		return outcome(err)
	}

	if mac.Status.ServerID == "" {
		return k.releaseOrder(ctx, api, mac)
	}

	return k.giveBack(ctx, api, mac)
}

// releaseOrder gives back what an order without an answer may have brought.
func (k *Kind) releaseOrder(
	ctx context.Context, api *scaleway.Client, mac *v1alpha1.ScalewayAppleSiliconMachine,
) step.Result {
	server, found, err := api.Find(ctx, serverName(mac))
	if err != nil {
		return outcome(err)
	}

	if found {
		if result := record(ctx, mac, server); !result.IsDone() {
			return result
		}

		return k.giveBack(ctx, api, mac)
	}

	if rest := orderWait - k.Clock.Since(mac.Status.OrderedAt.Time); rest > 0 {
		return step.Wait(rest, "OrderUnknown", "an order got no answer: looking whether there is a server to give back")
	}

	mac.Status.OrderedAt = nil

	return step.Done()
}

// giveBack wipes the server, so that nothing of ours is on its disk, and then lets go of
// it. It is called until it is done.
func (k *Kind) giveBack(ctx context.Context, api *scaleway.Client, mac *v1alpha1.ScalewayAppleSiliconMachine) step.Result {
	server, err := api.Get(ctx, mac.Status.ServerID)

	switch {
	case scaleway.Is(err, scaleway.NotFound):
		return forgotten(mac)
	case err != nil:
		return outcome(err)
	case server.Leaving || mac.Status.PoolName != "" && server.Name != mac.Status.PoolName && server.Name != serverName(mac):
		return forgotten(mac) // on its way out, or adopted by somebody else
	}

	if mac.Status.PoolName == "" && !k.Clock.Now().Before(server.DeletableAt) {
		if err := api.Delete(ctx, server.ID); err != nil && !scaleway.Is(err, scaleway.NotFound) {
			return waitFor(err, server)
		}

		return forgotten(mac)
	}

	if !mac.Status.WipeIssued && touched(mac) {
		if err := api.Wipe(ctx, server.ID); err != nil {
			return waitFor(err, server)
		}

		mac.Status.WipeIssued = true
		if err := step.Save(ctx); err != nil {
			return step.Fail(err)
		}
	}

	return k.letGo(ctx, api, mac, server)
}

// letGo gives a server of a pool its old name again, and has Scaleway delete any other when
// its least time is over.
func (k *Kind) letGo(
	ctx context.Context, api *scaleway.Client, mac *v1alpha1.ScalewayAppleSiliconMachine, server scaleway.Server,
) step.Result {
	var err error

	switch {
	case mac.Status.PoolName == "":
		err = api.Leave(ctx, server.ID)
	case server.Name != mac.Status.PoolName:
		err = api.Rename(ctx, server.ID, mac.Status.PoolName)
	}

	if err != nil && !scaleway.Is(err, scaleway.NotFound) {
		return waitFor(err, server)
	}

	return forgotten(mac)
}

// touched says whether anything of ours may be on the server's disk.
func touched(mac *v1alpha1.ScalewayAppleSiliconMachine) bool {
	return mac.Status.Bootstrapped || mac.Status.BootstrapAttempts > 0 || mac.Status.Push != nil || mac.Status.SSHHostKey != ""
}

// waitFor is outcome, but for a server that is busy: that is over in minutes.
func waitFor(err error, server scaleway.Server) step.Result {
	if scaleway.Is(err, scaleway.Busy) {
		return step.Wait(lookAgain, "ServerWorking", fmt.Sprintf("server %s is %s: it is given back after that",
			server.ID, server.Status))
	}

	return outcome(err)
}

// forgotten takes the server off the record.
func forgotten(mac *v1alpha1.ScalewayAppleSiliconMachine) step.Result {
	mac.Status.ServerID, mac.Status.ProviderID, mac.Status.PoolName = "", "", ""
	mac.Status.OrderedAt, mac.Status.WipeIssued = nil, false

	return step.Done()
}
