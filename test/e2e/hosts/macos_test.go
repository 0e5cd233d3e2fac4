// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/machost"
)

// macOS brings another version of macOS to all Macs, which are Nodes by now. The first one has no
// room for it, and it goes no further; with room it goes to all, over a kill of the operator.
func (w *world) macOS(version string) string {
	w.t.Helper()
	w.drains("macs")

	for _, mac := range w.macs() {
		env.Joins(w.t, mac.Name, nil)

		host := w.site.host(mac.Status.ServerID)
		if err := host.SetMacOS(host.MacOS(), "15.9", version); err != nil {
			w.t.Fatal(err)
		}
	}

	w.breakUpdates(machost.UpdateFull)
	w.patchFleet("macs", func(spec *infrav1.HostFleetSpec) { spec.MacOS = &infrav1.HostMacOS{Version: version} })
	w.eventually("the fleet stops at a Mac without room", func() bool {
		return w.isStopped("macs") && len(w.fleet("macs").Status.Permits) == 0
	})

	refused := w.refused(version)
	if len(refused) != 1 || len(w.begun()) != 1 {
		w.t.Errorf("%v have refused it, begun at %v; want the canary alone", refused, w.begun())
	}

	w.breakUpdates(machost.UpdatesWell)
	// Times on record are whole seconds.
	w.patchFleet("macs", func(spec *infrav1.HostFleetSpec) { spec.ResumedAt = new(metav1.NewTime(time.Now().Add(time.Second))) })

	most := 0
	updating := func() int {
		permits := len(w.fleet("macs").Status.Permits)
		most = max(most, permits)

		return permits
	}

	w.eventually("some Macs are updated at a time", func() bool { return updating() > 1 })
	w.kill()
	w.start()
	w.eventually("all Macs have macOS "+version, func() bool {
		updating()

		fleet := w.fleet("macs").Status

		return fleet.Converged == macs && fleet.MacOSVersion == version && len(fleet.Permits) == 0
	})

	if most > maxUnavailable {
		w.t.Errorf("%d at a time, want %d at most", most, maxUnavailable)
	}

	for _, mac := range w.macs() {
		host := w.site.host(mac.Status.ServerID)
		if node := env.Node(w.t, mac.Name); host.MacOS() != version || mac.Status.OSVersion != version || node.Spec.Unschedulable {
			w.t.Errorf("%s has macOS %s, on record is %s, its Node is cordoned: %t", mac.Name, host.MacOS(), mac.Status.OSVersion, node.Spec.Unschedulable)
		}
	}

	w.patchFleet("macs", func(spec *infrav1.HostFleetSpec) { spec.MacOS = nil })

	return fmt.Sprintf("refused for want of room by the canary alone; then %d Macs have %s, at most %d at a time, begun %d times",
		macs, version, most, len(w.begun()))
}

func (w *world) breakUpdates(fault machost.UpdateFault) {
	w.t.Helper()

	for id, host := range w.site.all() {
		if id == rack {
			continue
		}

		if err := host.BreakUpdates(fault); err != nil {
			w.t.Fatal(err)
		}
	}
}

// refused are the Macs that refused a version, and begun the servers, once for each time that
// softwareupdate was begun there.
func (w *world) refused(version string) []string {
	var out []string

	for _, mac := range w.macs() {
		if strings.HasSuffix(mac.Status.FailedHostConfigHash, "+macos-"+version) {
			out = append(out, mac.Name)
		}
	}

	return out
}

func (w *world) begun() []string {
	var out []string

	for id, host := range w.site.all() {
		for _, call := range host.Calls() {
			if strings.HasPrefix(call, "softwareupdate --install") {
				out = append(out, id)
			}
		}
	}

	return slices.Sorted(slices.Values(out))
}
