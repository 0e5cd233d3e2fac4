// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// The settings decide which checks run, with which timeout, and for which domain.
func TestChecksOfSettings(t *testing.T) {
	t.Parallel()

	describe := func(checks []check) string {
		var out []string
		for _, c := range checks {
			out = append(out, c.name+" "+c.timeout.String())
		}

		return strings.Join(out, ", ")
	}
	lookUps := func(validation v1alpha1.DNSValidation) []check {
		return newDNSChecks(&v1alpha1.HypervisorDNS{Validation: &validation}, domain, ports{})
	}

	for _, row := range []struct{ got, want string }{
		{describe(lookUps(v1alpha1.DNSValidation{})), "forward 10s"},
		{describe(lookUps(v1alpha1.DNSValidation{ValidateReverse: true, TimeoutSeconds: 3})), "forward 3s, reverse 3s"},
		{describe(newNetworkChecks(&v1alpha1.NetworkValidation{}, ports{})), ""},
		{describe(newNetworkChecks(&v1alpha1.NetworkValidation{PingTest: true}, ports{})), "ping 30s"},
		{describe(newNetworkChecks(&v1alpha1.NetworkValidation{SSHTest: true, TimeoutSeconds: 4}, ports{})), "ssh 4s"},
	} {
		if row.got != row.want {
			t.Errorf("checks %q, want %q", row.got, row.want)
		}
	}

	if got := (Options{}).withDefaults(); got.DNSPort != "53" || got.SSHPort != "22" {
		t.Errorf("ports %s and %s", got.DNSPort, got.SSHPort)
	}

	vm := target{"vm1." + domain, netip.MustParseAddr("127.0.0.1")}

	wrongDomain := lookUps(v1alpha1.DNSValidation{ExpectedDomain: "other.example"})[0]
	if got := wrongDomain.runWithTimeout(t.Context(), vm); got.reason != ReasonWrongDomain {
		t.Errorf("a name outside of expectedDomain: %+v", got)
	}

	// A timeout ends a check.
	ended := check{"x", time.Nanosecond, func(ctx context.Context, _ target) finding {
		<-ctx.Done()

		return finding{check: "x"}
	}}
	if got := ended.runWithTimeout(t.Context(), vm); got.check != "x" {
		t.Errorf("%+v", got)
	}

	checkTimeoutOfLookUps(t)
}

// checkTimeoutOfLookUps checks that a look-up whose timeout is over asks no other name server.
func checkTimeoutOfLookUps(t *testing.T) {
	t.Helper()

	silent, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	must.Do(t, err)
	t.Cleanup(func() { _ = silent.Close() })

	var queries atomic.Int64

	go func() {
		for {
			if _, _, err := silent.ReadFrom(make([]byte, 1<<10)); err != nil {
				return
			}

			queries.Add(1)
		}
	}()

	_, port, _ := net.SplitHostPort(silent.LocalAddr().String())
	settings := &v1alpha1.HypervisorDNS{
		Servers: []string{"127.0.0.1", "127.0.0.1", "127.0.0.1"}, Validation: &v1alpha1.DNSValidation{ValidateReverse: true},
	}

	for _, lookUp := range newDNSChecks(settings, domain, ports{dns: port}) {
		lookUp.timeout = 10 * time.Millisecond
		before := queries.Load()

		got := lookUp.runWithTimeout(t.Context(), target{"vm1." + domain, netip.MustParseAddr("127.0.0.1")})
		if sent := queries.Load() - before; got.reason == "" || sent > 1 {
			t.Errorf("%s with a silent name server: %+v, %d queries", lookUp.name, got, sent)
		}
	}
}

// Nothing is checked unless the validation is enabled. The network's interval is that of the look-ups by default.
func TestSchedulesOfSettings(t *testing.T) {
	t.Parallel()

	hour := &metav1.Duration{Duration: time.Hour}
	dns := func(v *v1alpha1.DNSValidation) *v1alpha1.HypervisorDNS { return &v1alpha1.HypervisorDNS{Validation: v} }

	for _, row := range []struct {
		why  string
		dns  *v1alpha1.HypervisorDNS
		want schedule
		on   bool
	}{
		{"no DNS", nil, schedule{}, false},
		{"no validation", dns(nil), schedule{}, false},
		{"disabled", dns(&v1alpha1.DNSValidation{ValidateOnReady: true, ValidateInterval: hour}), schedule{}, false},
		{"on Ready", dns(&v1alpha1.DNSValidation{Enabled: true, ValidateOnReady: true}), schedule{onReady: true}, true},
		{"in an interval", dns(&v1alpha1.DNSValidation{Enabled: true, ValidateInterval: hour}), schedule{interval: time.Hour}, true},
	} {
		if got, on := newDNSSchedule(row.dns); got != row.want || on != row.on {
			t.Errorf("look-ups, %s: %+v, %v", row.why, got, on)
		}
	}

	for _, row := range []struct {
		why  string
		test *v1alpha1.NetworkValidation
		want schedule
		on   bool
	}{
		{"no validation", nil, schedule{}, false},
		{"disabled", &v1alpha1.NetworkValidation{PingTest: true}, schedule{}, false},
		{"no test", &v1alpha1.NetworkValidation{Enabled: true}, schedule{}, false},
		{"the interval of the look-ups", &v1alpha1.NetworkValidation{Enabled: true, SSHTest: true}, schedule{true, time.Hour}, true},
		{
			"an interval", &v1alpha1.NetworkValidation{Enabled: true, PingTest: true, ValidateInterval: &metav1.Duration{Duration: time.Minute}},
			schedule{true, time.Minute}, true,
		},
	} {
		spec := v1alpha1.HypervisorClusterSpec{
			DNS: dns(&v1alpha1.DNSValidation{ValidateInterval: hour}), Network: &v1alpha1.HypervisorNetwork{Validation: row.test},
		}
		if got, on := newNetworkSchedule(spec); got != row.want || on != row.on {
			t.Errorf("tests, %s: %+v, %v", row.why, got, on)
		}
	}
}
