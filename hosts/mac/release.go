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
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// rebootAfter is how many first boots a host may refuse before it is restarted. It is restarted
// only once.
const rebootAfter = 3

// BeforeBoot restarts a server once, after it has refused rebootAfter first boots.
func (k *Kind) BeforeBoot(ctx context.Context, host machine.Object) step.Result {
	mac := macOf(host)
	if mac.Status.BootstrapAttempts < rebootAfter {
		return step.Done()
	}

	api, err := k.newClient(ctx, mac)
	if err != nil {
		return resultForError(err)
	}

	server, err := api.Get(ctx, mac.Status.ServerID)
	if err != nil {
		return resultForError(err)
	}

	if result := checkUsable(server); !result.IsDone() {
		return result
	}

	if mac.Status.BootstrapRebootIssued {
		return step.Done()
	}

	if err := api.Reboot(ctx, server.ID); err != nil {
		return resultForServer(err, server)
	}

	mac.Status.BootstrapRebootIssued = true

	return step.Wait(pollInterval, "Rebooting", fmt.Sprintf(
		"server %s was restarted because it refused %d first boots", server.ID, mac.Status.BootstrapAttempts))
}

// hasRefusedFirstBoot returns true if the first boot failed terminally with the current
// configuration.
func (k *Kind) hasRefusedFirstBoot(mac *v1alpha1.ScalewayAppleSiliconMachine) bool {
	return mac.Status.FailureReason == v1alpha1.FailureBootstrapExceededRetries && !mac.Status.Bootstrapped &&
		(k.hash == "" || mac.Status.FailedHostConfigHash == k.hash)
}

// releaseRefusedServer wipes and releases a server that refused too many first boots. The machine
// gets another server when its failureReason is cleared or the configuration changes.
func (k *Kind) releaseRefusedServer(
	ctx context.Context, api *scaleway.Client, mac *v1alpha1.ScalewayAppleSiliconMachine,
) step.Result {
	const advice = "; the server was released: clear status.failureReason to get another server"

	if mac.Status.ServerID != "" {
		if result := k.releaseServer(ctx, api, mac); !result.IsDone() {
			return result
		}

		mac.Status.FailureMessage += advice
		mac.Status.Addresses, mac.Status.SSHHostKey = nil, ""
	}

	mac.Status.Phase = v1alpha1.HostFailed

	return step.Stall(mac.Status.FailureReason, mac.Status.FailureMessage)
}

// RenderCredentialRemoval returns false, because Release wipes the server.
func (k *Kind) RenderCredentialRemoval(machine.Object) (plan.Part, bool) { return plan.Part{}, false }

// SecretsForRelease returns the Secret with the API key.
func (k *Kind) SecretsForRelease(host machine.Object, _ bool) []string {
	return []string{macOf(host).Spec.CredentialsSecretRef.Name}
}

// Release releases the server. It needs the API key. If the Secret with the key is missing, the
// object keeps its finalizer. Otherwise the server would cost money without an object that shows it.
func (k *Kind) Release(ctx context.Context, host machine.Object) step.Result {
	mac := macOf(host)

	if mac.Status.ServerID == "" && mac.Status.OrderedAt == nil {
		return step.Done()
	}

	api, err := k.newClient(ctx, mac)
	if err != nil {
		return resultForError(explainLostKey(mac, err))
	}

	if mac.Status.ServerID == "" {
		return k.releaseOrderedServer(ctx, api, mac)
	}

	return k.releaseServer(ctx, api, mac)
}

// explainLostKey adds advice to an error of newClient. In a namespace that is being deleted, nobody can create a
// missing Secret again. The advice says how a person can release the server without the Secret.
func explainLostKey(mac *v1alpha1.ScalewayAppleSiliconMachine, err error) error {
	reason := errclass.ReasonOf(err, "")
	if reason != credential.ReasonSecretNotFound && reason != credential.ReasonSecretForbidden {
		return err
	}

	server := "server " + mac.Status.ServerID
	if mac.Status.ServerID == "" {
		server = "the server named " + serverName(mac)

		// After a restore, the server still has the name of the earlier machine.
		if former := formerServerName(mac); former != "" {
			server += " or " + former
		}

		server += ", if there is one,"
	}

	advice := "delete " + server

	switch {
	case mac.Status.PoolName != "":
		advice = "reinstall " + server + " and give it its name " + mac.Status.PoolName + " back"
	case mac.Spec.AdoptPoolPrefix != "":
		advice = "reinstall " + server + " and give it a name that begins with " + mac.Spec.AdoptPoolPrefix
	}

	return errclass.New(errclass.Configuration, reason,
		"%w; if that is refused, because the namespace is being deleted, %s at Scaleway, and then run "+
			"`kubectl patch scalewayapplesiliconmachine %s -n %s --subresource status --type merge "+
			"-p '{\"status\":{\"serverID\":null,\"orderedAt\":null}}'`",
		err, advice, mac.Name, mac.Namespace)
}

// releaseOrderedServer releases the server that an order without a response may have created.
func (k *Kind) releaseOrderedServer(
	ctx context.Context, api *scaleway.Client, mac *v1alpha1.ScalewayAppleSiliconMachine,
) step.Result {
	server, found, err := k.findOrTakeOverServer(ctx, api, mac)
	if err != nil {
		return resultForError(err)
	}

	if found {
		if mac.Spec.AdoptPoolPrefix != "" && mac.Status.PoolName == "" {
			mac.Status.PoolName = newPoolName(mac, server) // a server of a pool is never deleted
		}

		if result := recordServer(ctx, mac, server); !result.IsDone() {
			return result
		}

		return k.releaseServer(ctx, api, mac)
	}

	if remaining := orderWait - k.Clock.Since(mac.Status.OrderedAt.Time); remaining > 0 {
		return step.Wait(remaining, "OrderUnknown", "the response to an order was lost: checking whether there is a server to release")
	}

	mac.Status.OrderedAt = nil

	return step.Done()
}

// releaseServer wipes the server, so that none of our data stays on its disk, and then releases it.
// It is called until its result is done.
func (k *Kind) releaseServer(ctx context.Context, api *scaleway.Client, mac *v1alpha1.ScalewayAppleSiliconMachine) step.Result {
	server, err := api.Get(ctx, mac.Status.ServerID)

	switch {
	case scaleway.IsKind(err, scaleway.NotFound):
		return clearServer(mac)
	case err != nil:
		return resultForError(err)
	}

	isFromPool := mac.Status.PoolName != ""
	isAdoptedByOther := isFromPool && server.Name != mac.Status.PoolName && server.Name != serverName(mac)

	if server.DeletionScheduled || isAdoptedByOther {
		return clearServer(mac)
	}

	isRentalOver := !k.Clock.Now().Before(server.DeletableAt)
	if !isFromPool && isRentalOver {
		if err := api.Delete(ctx, server.ID); err != nil && !scaleway.IsKind(err, scaleway.NotFound) {
			return resultForServer(err, server)
		}

		return clearServer(mac)
	}

	if !mac.Status.WipeIssued && needsWipe(mac) {
		if err := api.Wipe(ctx, server.ID); err != nil {
			return resultForServer(err, server)
		}

		mac.Status.WipeIssued = true
		if err := step.SaveStatus(ctx); err != nil {
			return step.Fail(err)
		}
	}

	return k.finishRelease(ctx, api, mac, server)
}

// finishRelease gives a server of a pool its old name back. It schedules any other server for
// deletion at the end of its minimum rental period.
func (k *Kind) finishRelease(
	ctx context.Context, api *scaleway.Client, mac *v1alpha1.ScalewayAppleSiliconMachine, server scaleway.Server,
) step.Result {
	var err error

	switch {
	case mac.Status.PoolName == "":
		err = api.ScheduleDeletion(ctx, server.ID)
	case server.Name != mac.Status.PoolName:
		err = api.Rename(ctx, server.ID, mac.Status.PoolName)
	}

	if err != nil && !scaleway.IsKind(err, scaleway.NotFound) {
		return resultForServer(err, server)
	}

	return clearServer(mac)
}

// needsWipe returns true if the server's disk may contain our data.
func needsWipe(mac *v1alpha1.ScalewayAppleSiliconMachine) bool {
	return mac.Status.Bootstrapped || mac.Status.BootstrapAttempts > 0 || mac.Status.Push != nil || mac.Status.SSHHostKey != ""
}

// resultForServer returns the result for an error, like resultForError. For a busy server it waits
// only pollInterval, because the server is free again within minutes.
func resultForServer(err error, server scaleway.Server) step.Result {
	if scaleway.IsKind(err, scaleway.Busy) {
		return step.Wait(pollInterval, "WaitingForServer", fmt.Sprintf("server %s is %s: waiting to release it",
			server.ID, server.Status))
	}

	return resultForError(err)
}

// clearServer removes the server from the machine's status.
func clearServer(mac *v1alpha1.ScalewayAppleSiliconMachine) step.Result {
	mac.Status.ServerID, mac.Status.ProviderID, mac.Status.PoolName = "", "", ""
	mac.Status.OrderedAt, mac.Status.WipeIssued = nil, false

	return step.Done()
}
