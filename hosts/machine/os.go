// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/push"
	"github.com/hyperfleet/hyperfleet/hosts/ssh"
	"github.com/hyperfleet/hyperfleet/kit/drain"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

const (
	reasonUpdatingOS = "UpdatingMacOS"
	reasonRestarting = "HostRestarting"
	reasonReturning  = "NodeReturning"
	reasonOSUpdated  = "MacOSUpdated"
	reasonOSFailed   = "MacOSUpdateFailed"

	// mostWords bounds what is kept of a host's words.
	mostWords = 256
)

// OSStep is what a host is asked about its operating system.
type OSStep string

// What is asked. Each may be asked any number of times over.
const (
	// OSVersion asks which it has.
	OSVersion OSStep = "version"
	// OSOffer asks under which name an update is offered.
	OSOffer OSStep = "offer"
	// OSInstall begins an update that has not begun, and asks how far it is.
	OSInstall OSStep = "install"
	// OSCancel ends an update that takes too long.
	OSCancel OSStep = "cancel"
)

// OSAsk is a question about a host's operating system, with the version that is wanted, the name
// under which it is offered, and what tells this try to install it from others.
type OSAsk struct {
	Step                    OSStep
	Version, Label, Attempt string
}

// desired is what the host should have.
func (s *scope) desired() drift.Desired { return Desired(s.hash, s.fleet) }

// Desired is what hosts of a kind should have, by its hash and their fleet.
func Desired(hash string, fleet *v1alpha1.HostFleet) drift.Desired {
	out := drift.Desired{Hash: hash}
	if fleet != nil && fleet.Spec.MacOS != nil {
		out.OSVersion = fleet.Spec.MacOS.Version
	}

	return out
}

// beginOS puts on record that the host's operating system is updated, under a permit.
func (s *scope) beginOS(ctx context.Context, permit *v1alpha1.HostPermit) step.Result {
	now := metav1.NewTime(s.Clock.Now()).Rfc3339Copy()
	s.status.Push = &v1alpha1.HostPush{Permit: permit.Number, Hash: permit.Hash, What: permit.What, Started: now}
	s.status.OSUpdate = &v1alpha1.HostOSUpdate{Version: s.desired().OSVersion, StartedAt: now}

	if err := step.Save(ctx); err != nil {
		return step.Fail(err)
	}

	return s.updateOS(ctx)
}

// updateOS goes on with an update of the operating system that is on record: the update is looked
// for, the Node drained, the update begun, the host awaited, and the Node put in service again. It
// is done when all that is over, in one way or another.
func (s *scope) updateOS(ctx context.Context) step.Result {
	update := s.status.OSUpdate
	if update == nil { // somebody has cleared it
		s.status.LastPermit, s.status.Push = max(s.status.LastPermit, s.status.Push.Permit), nil

		return step.Done()
	}

	left := s.leftOS()

	switch {
	case update.EndedAt != nil:
	case update.Label == "" && left > 0:
		return s.lookOS(ctx, OSOffer, left)
	case update.Label == "":
		drift.FailOS(s.status, s.Clock.Now(), drift.ReasonNotBack, "the host could not be asked for updates: "+s.status.ContactMessage)
	case update.InstallStartedAt == nil && s.fleet.Spec.Drain == nil:
		drift.FailOS(s.status, s.Clock.Now(), drift.ReasonRefused, "the fleet's drain was taken out: put it back, or take out macOS")
	case update.InstallStartedAt == nil:
		if result := s.orderOS().Pass(ctx); !result.IsDone() {
			return result
		}

		if update.Drain.Reason != drain.ReasonTimedOut {
			return s.install(ctx)
		}

		drift.FailOS(s.status, s.Clock.Now(), drain.ReasonTimedOut, update.Drain.Message)
	case left > 0:
		return s.lookOS(ctx, OSInstall, left)
	case update.AwaySince == nil:
		return s.lookOS(ctx, OSCancel, 0)
	default:
		s.notBack()
	}

	return s.returned(ctx)
}

// begunOS is when what the update is at began: its installation, or what comes before.
func (s *scope) begunOS() time.Time {
	if at := s.status.OSUpdate.InstallStartedAt; at != nil {
		return at.Time
	}

	return s.status.OSUpdate.StartedAt.Time
}

// leftOS is how much of the update's time is left.
func (s *scope) leftOS() time.Duration { return s.limitOS() - s.Clock.Since(s.begunOS()) }

// limitOS is how long an update may take. A fleet that names no version any more lets one that has
// begun come to its end.
func (s *scope) limitOS() time.Duration {
	const usual = 2 * time.Hour
	if s.fleet.Spec.MacOS == nil {
		return usual
	}

	return cmp.Or(s.fleet.Spec.MacOS.Timeout.Duration, usual)
}

// orderOS is the drain of the host's Node for its update.
func (s *scope) orderOS() drain.Order {
	order := s.order()
	order.Record, order.ComesBack = &s.status.OSUpdate.Drain, true

	return order
}

// install begins the installation, of which nobody knows how far it is once it has begun.
func (s *scope) install(ctx context.Context) step.Result {
	s.status.OSUpdate.InstallStartedAt = new(metav1.NewTime(s.Clock.Now()).Rfc3339Copy())
	if err := step.Save(ctx); err != nil {
		return step.Fail(err)
	}

	return s.lookOS(ctx, OSInstall, s.leftOS())
}

// notBack is a host that is away since its restart.
func (s *scope) notBack() {
	update := s.status.OSUpdate
	drift.FailOS(s.status, s.Clock.Now(), drift.ReasonNotBack, fmt.Sprintf("the host is away since %s: %s",
		update.AwaySince.UTC().Format(time.RFC3339), s.status.ContactMessage))

	s.status.UnreachableSince, s.status.ContactAttempts = update.AwaySince, 1
}

// lookOS asks the host, no more often than the first pause after a failure is long. Where it can't
// be asked it is away, whatever the reason.
func (s *scope) lookOS(ctx context.Context, ask OSStep, left time.Duration) step.Result {
	update := s.status.OSUpdate
	if s.running() != "" {
		return step.Wait(safety, reasonUpdatingOS, s.wordsOS())
	}

	if last := s.status.LastContactTime; last != nil && last.After(update.StartedAt.Time) {
		if wait := min(last.Add(s.Settings.Policy.Base).Sub(s.Clock.Now()), left); wait > 0 {
			return step.Wait(wait, s.reasonOS(), s.wordsOS())
		}
	}

	return s.begin(ctx, job{what: drift.OSUpdate, ask: OSAsk{
		Step: ask, Version: update.Version, Label: update.Label, Attempt: strconv.FormatInt(s.begunOS().Unix(), 10),
	}})
}

// unableOS is a host that can't even be asked, as for want of a Secret.
func (s *scope) unableOS(err error) step.Result {
	if errclass.Of(err) == errclass.Transient {
		return step.Fail(err)
	}

	now := metav1.NewTime(s.Clock.Now()).Rfc3339Copy()
	s.status.LastContactTime, s.status.ContactMessage = &now, err.Error()
	s.status.ContactReason = errclass.Reason(err, "Misconfigured")

	if s.status.OSUpdate.AwaySince == nil {
		s.status.OSUpdate.AwaySince = &now
	}

	return step.Wait(s.Settings.Policy.Base, s.status.ContactReason, err.Error())
}

func (s *scope) reasonOS() string {
	if s.status.OSUpdate.AwaySince != nil {
		return reasonRestarting
	}

	return reasonUpdatingOS
}

func (s *scope) wordsOS() string {
	update := s.status.OSUpdate
	what := fmt.Sprintf("the host is updated from macOS %s to %s", s.status.OSVersion, update.Version)

	switch {
	case update.AwaySince != nil:
		return fmt.Sprintf("%s: it can't be reached since %s, as while it restarts; it is waited for until %s: %s",
			what, update.AwaySince.UTC().Format(time.RFC3339), s.Clock.Now().Add(s.leftOS()).UTC().Format(time.RFC3339),
			s.status.ContactMessage)
	case update.Progress != "":
		return what + ": " + update.Progress
	default:
		return what
	}
}

// returned puts the host's Node in service again, and notes how the update ended. One that went
// well is over when the Node is ready.
func (s *scope) returned(ctx context.Context) step.Result {
	update := s.status.OSUpdate

	if update.Drain != nil && s.fleet.Spec.Drain != nil {
		ready, err := s.orderOS().Return(ctx)

		switch {
		case err != nil:
			return step.Wait(lookAgain, errclass.Reason(err, reasonReturning),
				fmt.Sprintf("Node %s is not in service again: %v", s.obj.GetName(), err))
		case !ready && update.Reason == "" && s.leftOS() > 0:
			return step.Wait(min(lookAgain, s.leftOS()), reasonReturning,
				fmt.Sprintf("the host has macOS %s, and its Node is not ready yet", s.status.OSVersion))
		case !ready && update.Reason == "":
			drift.FailOS(s.status, s.Clock.Now(), drift.ReasonNodeNotReady,
				fmt.Sprintf("the host has macOS %s, and its Node was not ready within %s", s.status.OSVersion, s.limitOS()))
		}
	}

	version, reason, message := update.Version, update.Reason, update.Message

	said := drift.FinishOS(s.status, s.Settings.Policy)
	s.phase()

	if err := step.Save(ctx); err != nil {
		return step.Fail(err)
	}

	if said == drift.Succeeded {
		s.Recorder.Eventf(s.obj, nil, corev1.EventTypeNormal, reasonOSUpdated, string(drift.OSUpdate),
			"the host has macOS %s", s.status.OSVersion)
	} else {
		s.Recorder.Eventf(s.obj, nil, corev1.EventTypeWarning, reasonOSFailed, string(drift.OSUpdate),
			"update to macOS %s: %s: %s", version, reason, message)
	}

	return step.Done()
}

// askOS asks a host about its operating system. Where an update is over, what it took away of the
// configuration is brought back, but for the credential, which has its own turn.
func (p *WorkerPool) askOS(ctx context.Context, conn *ssh.Conn, work job, options push.Options, out *outcome) {
	said, err := runOS(ctx, conn, work.os, p.timeout)
	if err != nil {
		out.Err = err

		return
	}

	out.OSVersion, out.OS, out.Err = readOS(said)
	if out.Err != nil || !drift.Reached(out.OSVersion, work.ask.Version) {
		return
	}

	lost, err := lost(ctx, conn, work.plan, options)
	if err != nil {
		out.Err = err

		return
	}

	// A part of another configuration has its own turn, too.
	own := map[string]bool{plan.Kubeconfig: true}
	for _, change := range plan.Diff(work.plan.Digests(), work.has) {
		own[change.Label] = true
	}

	drifted := slices.DeleteFunc(slices.Clone(lost), func(label string) bool { return own[label] })

	if out.Result.Lost = lost; len(drifted) > 0 {
		out.Result = push.Drift(ctx, conn, work.plan, drifted, options)
	}
}

// versionOf asks a host that is otherwise well for its version.
func (p *WorkerPool) versionOf(ctx context.Context, conn *ssh.Conn, work job) string {
	said, err := runOS(ctx, conn, work.os, p.timeout)
	if err != nil {
		return drift.UnknownOS
	}

	version, _, err := readOS(said)
	if err != nil {
		return drift.UnknownOS
	}

	return cmp.Or(version, drift.UnknownOS)
}

func runOS(ctx context.Context, conn *ssh.Conn, part plan.Part, limit time.Duration) (string, error) {
	script := ssh.Script{Label: part.Label, Input: strings.NewReader(part.Input()), Timeout: limit}
	if !part.Secret.Empty() {
		script.Secrets = append(script.Secrets, part.Secret)
	}

	out, err := conn.Run(ctx, script)

	return out.Stdout, err
}

// readOS reads what a host said of its operating system: lines that begin with version, offered,
// running or failed. A host that was cut short says nothing that ends an update.
func readOS(said string) (string, drift.OSLook, error) {
	var (
		version string
		look    drift.OSLook
	)

	lines := bufio.NewScanner(strings.NewReader(said))
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		rest = clip(rest)

		switch word {
		case "version":
			version = rest
		case "offered":
			look.Label = rest
		case "running":
			look.Running, look.Progress = true, rest
		case "failed":
			look.Reason, look.Message, _ = strings.Cut(rest, " ")
		default:
			return "", look, fmt.Errorf("read what the host says of its operating system: %q is no line of it", clip(lines.Text()))
		}
	}

	if err := lines.Err(); err != nil {
		return "", look, fmt.Errorf("read what the host says of its operating system: %w", err)
	}

	return version, look, nil
}

// clip keeps the first printable characters of a host's words.
func clip(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}

		return r
	}, strings.ToValidUTF8(text, "?"))

	if len(text) > mostWords {
		text = strings.ToValidUTF8(text[:mostWords], "")
	}

	return strings.TrimSpace(text)
}
