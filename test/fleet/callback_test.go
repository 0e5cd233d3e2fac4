// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"bytes"
	"context"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// seen is what a test finds in machines before they run.
type seen struct {
	mu      sync.Mutex
	configs []guest.Config
	media   [][]byte
}

// watched is the guest, with a look at its cloud-init ISO before it runs.
func (s *seen) watched(t *testing.T) func(pve.GuestVM, func(pve.GuestVM)) {
	t.Helper()

	return func(vm pve.GuestVM, run func(pve.GuestVM)) {
		cfg, err := fleet.ReadGuestConfig(vm.Drive)
		if err != nil {
			t.Errorf("read configuration: %v", err)
		}

		s.mu.Lock()
		s.configs = append(s.configs, cfg)

		for _, file := range vm.Drive {
			s.media = append(s.media, file)
		}
		s.mu.Unlock()

		run(vm)
	}
}

// With method callback no cloud-init ISO holds a credential, jobs run all the same, and a code that
// a job finds on its machine is worth nothing any more.
func TestMachinesCallForTheirCredential(t *testing.T) {
	t.Parallel()

	const jobs = 2

	var found seen

	f := quick(t, fleet.Options{Guest: found.watched(t)})
	template := f.NewTemplate()
	template.Spec.Bootstrap.Method = v1alpha1.BootstrapCallback
	begin(f, template, f.NewPool(jobs))
	f.EventuallyReady(f.NewPool(0))
	queue(f, jobs)
	f.EventuallyJobsDone(jobs)
	f.EventuallyEvent("CredentialHandedOver")
	f.EventuallyClean()

	if made := f.GitHub.State().Registered; made != jobs {
		t.Errorf("%d credentials were made for %d jobs", made, jobs)
	}

	found.mu.Lock()
	defer found.mu.Unlock()

	for _, cfg := range found.configs {
		if !reflect.DeepEqual(cfg.Credential(), guest.Credential{}) || cfg.Callback == nil {
			t.Errorf("the cloud-init ISO of runner %s holds a credential, or no code", cfg.RunnerName)

			continue
		}

		if status := call(t, cfg); status != http.StatusGone {
			t.Errorf("the code of runner %s, used again: status %d", cfg.RunnerName, status)
		}
	}

	// Whatever else is on the cloud-init ISOs: a JIT configuration is base64 of JSON that begins so.
	for _, file := range found.media {
		if bytes.Contains(file, []byte("eyI")) || bytes.Contains(file, []byte("jit_config")) {
			t.Errorf("a cloud-init ISO holds what looks like a credential:\n%s", file)
		}
	}
}

// A machine whose code somebody else has used before it gets no credential, and its claim
// ends; whoever has used the code is told of.
func TestAStolenCodeEndsTheMachine(t *testing.T) {
	t.Parallel()

	f := quick(t, fleet.Options{Guest: func(vm pve.GuestVM, run func(pve.GuestVM)) {
		if cfg, err := fleet.ReadGuestConfig(vm.Drive); err != nil || call(t, cfg) != http.StatusOK {
			t.Errorf("the thief got nothing: error %v", err)
		}

		run(vm)
	}})
	template := f.NewTemplate()
	template.Spec.Bootstrap.Method = v1alpha1.BootstrapCallback

	claim := f.NewClaim("robbed")
	begin(f, template, claim)
	f.EventuallyEvent("CredentialRefused")
	f.EventuallyEvent("VMStopped")
	f.EventuallyClean() // the thief's runner as well

	eventuallyGone(f, claim)
	says(t, strings.Join(f.Events(), "\n"), "BootstrapFailed CredentialRefused")
}

func call(t *testing.T, cfg guest.Config) int {
	t.Helper()

	if cfg.Callback == nil {
		return 0
	}

	request, err := http.NewRequestWithContext(context.Background(), http.MethodPost, cfg.Callback.URL, http.NoBody)
	if err != nil {
		t.Error(err)

		return 0
	}

	request.Header.Set("Authorization", "Bearer "+cfg.Callback.Code)

	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Error(err)

		return 0
	}

	_ = response.Body.Close()

	return response.StatusCode
}
