// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/workload"
)

// maxLabel is the maximum length of a label value in Kubernetes.
const maxLabel = 63

//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerlogs,verbs=get;create;delete
//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerjobs,verbs=get;list;watch

// Logs stores the last part of each machine's log in a RunnerLog, which is named after the
// machine's runner and never changes.
//
// If the machine's job is known, the job owns the RunnerLog, and the RunnerLog is deleted with the
// job. Otherwise the RunnerLog has no owner and has the label LabelUnassignedLog. The job finds it by
// the runner's name, and LogGarbageCollector deletes the RunnerLogs that no job references.
type Logs struct {
	// Client writes logs and reads jobs. Its cache must have the index demand.IndexRunnerName.
	Client client.Client
	// Live reads logs from the API server, because a cache would hold all of them in memory.
	// Default: Client.
	Live client.Reader
	// Key is the key of the machines' tokens and codes, which are redacted in the output of consoles.
	Key []byte
	// UploadEnabled marks each RunnerLog with a label, so that the package logstore uploads it to the object
	// store.
	UploadEnabled bool
}

// LogName returns the name of the RunnerLog of a runner's machine. The runner's name is unique; see
// workload.RunnerName.
func LogName(runner string) string {
	return strings.ReplaceAll(runner, ".-", "--") + "-log" // a truncated claim name may end with a dot
}

// Keep stores the log of a claim's machine. If the log is already stored, Keep changes nothing,
// because a machine repeats a report without new content.
func (l *Logs) Keep(ctx context.Context, claim *v1alpha1.MachineClaim, text string) error {
	return l.keep(ctx, claim, LogName(workload.RunnerName(claim.Name, claim.UID)), text)
}

// ConsoleName returns the name of the RunnerLog with the output of a machine's serial console.
func ConsoleName(runner string) string {
	return strings.TrimSuffix(LogName(runner), "-log") + "-console"
}

// controlSequences matches the control sequences of terminals, and control characters other than the line feed.
var controlSequences = regexp.MustCompile(`\x1b\[[0-9;?=]*[A-Za-z]|\x1b[()c78][A-Z0-9]?|[\x00-\x08\x0b-\x1f\x7f]`)

// KeepConsole stores the output of the serial console of a claim's machine, beside its log. The machine's token and
// codes are redacted. The runner's own credential never reaches a console, because only the bootstrap service and the
// runner know it, and the bootstrap service redacts what the runner prints.
func (l *Logs) KeepConsole(ctx context.Context, claim *v1alpha1.MachineClaim, text string) error {
	namespace, name, uid := claim.Namespace, claim.Name, claim.UID
	redactor := log.NewRedactor(nil, vmspec.ReportToken(l.Key, namespace, name, uid),
		vmspec.ClaimCode(l.Key, namespace, name, uid), vmspec.DevIDCode(l.Key, namespace, name, uid))

	text = redactor.Redact(controlSequences.ReplaceAllString(text, ""))

	return l.keep(ctx, claim, ConsoleName(workload.RunnerName(name, uid)), text)
}

// keep creates the RunnerLog of a text from a claim's machine. If the job is known, the job owns the RunnerLog. Otherwise,
// labels name the claim and its pool or template. If the RunnerLog exists, the machine has sent the text twice.
func (l *Logs) keep(ctx context.Context, claim *v1alpha1.MachineClaim, name, text string) error {
	job, err := l.findJob(ctx, claim)
	if err != nil {
		return err
	}

	runnerLog := l.newRunnerLog(claim, name, text)

	if job == nil {
		runnerLog.Labels[v1alpha1.LabelLogsOf] = toLabelValue(claim.Name)
		runnerLog.Labels[v1alpha1.LabelUnassignedLog] = toLabelValue(poolOrTemplateName(claim))
	} else {
		runnerLog.Labels[v1alpha1.LabelLogsOf] = toLabelValue(job.Name)
		runnerLog.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "RunnerJob", Name: job.Name, UID: job.UID,
		}}
	}

	if err := l.Client.Create(ctx, runnerLog); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create RunnerLog %s: %w", client.ObjectKeyFromObject(runnerLog), err)
	}

	return nil
}

// poolOrTemplateName returns the value of LabelUnassignedLog for a claim's log: the name of the pool, or of the
// template if no pool created the claim.
func poolOrTemplateName(claim *v1alpha1.MachineClaim) string {
	return cmp.Or(claim.PoolName(), claim.Spec.TemplateRef.Name)
}

// newRunnerLog returns the RunnerLog with the last part of a text from a claim's machine.
func (l *Logs) newRunnerLog(claim *v1alpha1.MachineClaim, name, text string) *v1alpha1.RunnerLog {
	end, isTruncated := truncateToTail(text, guest.MaxLog)
	out := &v1alpha1.RunnerLog{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: claim.Namespace, Name: name, Labels: map[string]string{},
		},
		Spec: v1alpha1.RunnerLogSpec{Claim: claim.Name, Text: end, Cut: isTruncated},
	}

	if l.UploadEnabled {
		out.Labels[v1alpha1.LabelLogStore] = v1alpha1.LogStorePending
	}

	return out
}

// Find returns the name of the RunnerLog of a runner's machine; empty if there is none, or if the
// operator lacks the permission to read it.
func (l *Logs) Find(ctx context.Context, namespace, runner string) (string, error) {
	key := client.ObjectKey{Namespace: namespace, Name: LogName(runner)}

	found := &metav1.PartialObjectMetadata{}
	found.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("RunnerLog"))

	err := l.liveReader().Get(ctx, key, found)

	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("get RunnerLog %s: %w", key, err)
	default:
		return key.Name, nil
	}
}

// Delete deletes the log of a deleted job. It is needed for a log without an owner.
func (l *Logs) Delete(ctx context.Context, namespace, name string) error {
	err := l.Client.Delete(ctx, &v1alpha1.RunnerLog{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete log %s/%s: %w", namespace, name, err)
	}

	return nil
}

// findJob returns the job of a claim's machine: the job that its runner took, or that the machine
// was created for; nil if none is known.
func (l *Logs) findJob(ctx context.Context, claim *v1alpha1.MachineClaim) (*v1alpha1.RunnerJob, error) {
	info := claim.Status.BootstrapInfo
	if info == nil {
		return nil, nil //nolint:nilnil // no job is no error
	}

	for _, name := range []string{info.Job, info.BoundJob} {
		if name == "" {
			continue
		}

		var job v1alpha1.RunnerJob

		err := l.Client.Get(ctx, client.ObjectKey{Namespace: claim.Namespace, Name: name}, &job)
		if err == nil {
			return &job, nil
		}

		if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("get job %s: %w", name, err)
		}
	}

	if info.RunnerName == "" {
		return nil, nil //nolint:nilnil // no job is no error
	}

	var jobs v1alpha1.RunnerJobList

	err := l.Client.List(ctx, &jobs, client.InNamespace(claim.Namespace), client.UnsafeDisableDeepCopy,
		client.MatchingFields{demand.IndexRunnerName: info.RunnerName})
	if err != nil {
		return nil, fmt.Errorf("list jobs of runner %s: %w", info.RunnerName, err)
	}

	if len(jobs.Items) == 0 {
		return nil, nil //nolint:nilnil // no job is no error
	}

	return jobs.Items[0].DeepCopy(), nil
}

// toLabelValue returns a valid label value of a name.
func toLabelValue(name string) string {
	return strings.TrimRight(name[:min(len(name), maxLabel)], "-_.")
}

func (l *Logs) liveReader() client.Reader {
	if l.Live != nil {
		return l.Live
	}

	return l.Client
}

// truncateToTail returns the end of a text with at most limit bytes, and whether it cut anything
// off. The result starts at the beginning of a line, unless that would drop half of it.
func truncateToTail(text string, limit int) (tail string, isTruncated bool) {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= limit {
		return text, false
	}

	text = text[len(text)-limit:]
	for text != "" && !utf8.RuneStart(text[0]) {
		text = text[1:]
	}

	if _, rest, ok := strings.Cut(text, "\n"); ok && len(rest) > limit/2 {
		return rest, true
	}

	return text, true
}
