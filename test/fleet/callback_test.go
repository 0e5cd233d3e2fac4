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

// guestRecorder records what is on the cloud-init ISOs of machines.
type guestRecorder struct {
	mu      sync.Mutex
	configs []guest.Config
	files   [][]byte
}

// wrapGuest returns a guest that records its cloud-init ISO before it runs.
func (s *guestRecorder) wrapGuest(t *testing.T) func(pve.GuestVM, func(pve.GuestVM)) {
	t.Helper()

	return func(vm pve.GuestVM, run func(pve.GuestVM)) {
		cfg, err := fleet.ReadGuestConfig(vm.Drive)
		if err != nil {
			t.Errorf("read configuration: %v", err)
		}

		s.mu.Lock()
		s.configs = append(s.configs, cfg)

		for _, file := range vm.Drive {
			s.files = append(s.files, file)
		}
		s.mu.Unlock()

		run(vm)
	}
}

// TestMachinesRequestCredentials checks that with method callback no cloud-init ISO contains a credential, that
// jobs run, and that the code on the cloud-init ISO is invalid afterwards.
func TestMachinesRequestCredentials(t *testing.T) {
	t.Parallel()

	const jobs = 2

	var found guestRecorder

	f := newFastFleet(t, fleet.Options{Guest: found.wrapGuest(t)})
	template := f.NewTemplate()
	template.Spec.Bootstrap.Method = v1alpha1.BootstrapCallback
	createAndStart(f, template, f.NewPool(jobs))
	f.EventuallyReady(f.NewPool(0))
	queueJobs(f, jobs)
	f.EventuallyJobsDone(jobs)
	f.EventuallyEvent("CredentialHandedOver")
	f.EventuallyClean()

	if made := f.GitHub.State().Registered; made != jobs {
		t.Errorf("%d credentials were created for %d jobs", made, jobs)
	}

	found.mu.Lock()
	defer found.mu.Unlock()

	for _, cfg := range found.configs {
		if !reflect.DeepEqual(cfg.Credential(), guest.Credential{}) || cfg.Callback == nil {
			t.Errorf("the cloud-init ISO of runner %s contains a credential, or no code", cfg.RunnerName)

			continue
		}

		if status := postCallback(t, cfg); status != http.StatusGone {
			t.Errorf("second request with the code of runner %s: status %d, want 410", cfg.RunnerName, status)
		}
	}

	// A JIT configuration is the base64 encoding of JSON, which begins with these letters.
	for _, file := range found.files {
		if bytes.Contains(file, []byte("eyI")) || bytes.Contains(file, []byte("jit_config")) {
			t.Errorf("a cloud-init ISO contains text like a credential:\n%s", file)
		}
	}
}

// TestStolenCodeEndsMachine checks that a machine whose code was used before gets no credential, that its claim
// ends, and that an event reports this.
func TestStolenCodeEndsMachine(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{Guest: func(vm pve.GuestVM, run func(pve.GuestVM)) {
		if cfg, err := fleet.ReadGuestConfig(vm.Drive); err != nil || postCallback(t, cfg) != http.StatusOK {
			t.Errorf("the first request with the code failed: error %v", err)
		}

		run(vm)
	}})
	template := f.NewTemplate()
	template.Spec.Bootstrap.Method = v1alpha1.BootstrapCallback

	claim := f.NewClaim("stolen")
	createAndStart(f, template, claim)
	f.EventuallyEvent("CredentialRefused")
	f.EventuallyEvent("VMStopped")
	f.EventuallyClean() // this includes the runner of the first request

	eventuallyDeleted(f, claim)
	checkContains(t, strings.Join(f.Events(), "\n"), "BootstrapFailed CredentialRefused")
}

// postCallback requests a credential with the machine's code, and returns the status of the response.
func postCallback(t *testing.T, cfg guest.Config) int {
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
