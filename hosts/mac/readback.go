// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package mac

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/machine"
	"github.com/hyperfleet/hyperfleet/hosts/scaleway"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// Marks returns the names of the machine's server. The mark of an earlier machine stays until the machine
// has its server.
func (k *Kind) Marks(host machine.Object) machine.Marks {
	mac := macOf(host)
	out := machine.Marks{v1alpha1.AnnotationServerName: serverName(mac), v1alpha1.AnnotationPoolName: mac.Status.PoolName}

	if former := formerServerName(mac); former != "" && mac.Status.ServerID == "" {
		out[v1alpha1.AnnotationServerName] = former
		out[v1alpha1.AnnotationPoolName] = mac.Annotations[v1alpha1.AnnotationPoolName]
	}

	return out
}

// ReadBack restores what it can of a status that was lost. The machine may have a server, or may have ordered
// one just now, and nothing shows that it has not. So ReadBack sets OrderedAt: with it, the operator looks for
// such a server before it orders or releases one.
func (k *Kind) ReadBack(host machine.Object) {
	mac := macOf(host)

	mac.Status.PoolName = mac.Annotations[v1alpha1.AnnotationPoolName]
	mac.Status.OrderedAt = new(metav1.NewTime(k.Clock.Now()))
}

// formerServerName returns the name of the server of an earlier object with the machine's name. It is empty
// if there was none.
func formerServerName(mac *v1alpha1.ScalewayAppleSiliconMachine) string {
	marked := mac.Annotations[v1alpha1.AnnotationServerName]
	if marked == serverName(mac) || !strings.HasPrefix(marked, ourPrefix+mac.Name+"-") {
		return ""
	}

	return marked
}

// findOrTakeOverServer returns the server with the machine's name. If there is none, it returns the server of the earlier
// object that the machine was restored from, and renames that server.
func (k *Kind) findOrTakeOverServer(
	ctx context.Context, api *scaleway.Client, mac *v1alpha1.ScalewayAppleSiliconMachine,
) (server scaleway.Server, found bool, err error) {
	server, found, err = api.Find(ctx, serverName(mac))
	if err != nil || found {
		return server, found, err
	}

	former := formerServerName(mac)
	if former == "" {
		return server, false, nil
	}

	if isUsed, err := k.isServerOfExistingMachine(ctx, former); err != nil || isUsed {
		return server, false, err
	}

	if server, found, err = api.Find(ctx, former); err != nil || !found {
		return server, false, err
	}

	if err := api.Rename(ctx, server.ID, serverName(mac)); err != nil {
		return server, false, err
	}

	server.Name = serverName(mac)

	return server, true, nil
}

// uidPattern matches the UID in the name of a server.
var uidPattern = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// checkPreviousServer stalls if there is a server of an earlier machine with the same name, and no machine of
// this cluster has that server. Either this machine was restored without its annotations, or the server belongs
// to another cluster. Only a person can decide.
func (k *Kind) checkPreviousServer(
	ctx context.Context, api *scaleway.Client, mac *v1alpha1.ScalewayAppleSiliconMachine,
) step.Result {
	servers, err := api.List(ctx)
	if err != nil {
		return resultForError(err)
	}

	for _, server := range servers {
		uid, hasPrefix := strings.CutPrefix(server.Name, ourPrefix+mac.Name+"-")
		if !hasPrefix || !uidPattern.MatchString(uid) || uid == string(mac.UID) || server.DeletionScheduled {
			continue
		}

		isUsed, err := k.isServerOfExistingMachine(ctx, server.Name)
		if err != nil {
			return step.Fail(err)
		}

		if !isUsed {
			return step.Stall("PreviousServerExists", fmt.Sprintf("server %s at Scaleway is named %s, after an earlier machine with this "+
				"name: to take it over, run `kubectl annotate scalewayapplesiliconmachine %s -n %s --overwrite %s=%s`; "+
				"if it belongs to another cluster, give this machine another name; if nothing needs it, delete it at Scaleway",
				server.ID, server.Name, mac.Name, mac.Namespace, v1alpha1.AnnotationServerName, server.Name))
		}
	}

	return step.Done()
}

// isServerOfExistingMachine returns whether a server's name is that of an existing machine. This is the case if a
// person has copied the annotations of that machine.
func (k *Kind) isServerOfExistingMachine(ctx context.Context, name string) (bool, error) {
	var machines v1alpha1.ScalewayAppleSiliconMachineList
	if err := k.APIReader.List(ctx, &machines); err != nil {
		return false, fmt.Errorf("list machines: %w", err)
	}

	for i := range machines.Items {
		if serverName(&machines.Items[i]) == name {
			return true, nil
		}
	}

	return false, nil
}

// clearHostStatus removes from the status what was recorded about the machine's earlier server.
func clearHostStatus(mac *v1alpha1.ScalewayAppleSiliconMachine) {
	mac.Status.SSHHostKey, mac.Status.Bootstrapped, mac.Status.HostConfigHash, mac.Status.Parts = "", false, "", nil

	if mac.Status.FailureReason == v1alpha1.FailureHostKeyLost {
		mac.Status.FailureReason, mac.Status.FailureMessage = "", ""
	}
}
