// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/workload"
)

// maxLabel is Kubernetes' bound of a label's value.
const maxLabel = 63

//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerlogs,verbs=get;create;delete
//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerjobs,verbs=get;list;watch

// Logs keeps the ends of machines' logs, each in a RunnerLog of its own that is written once
// and named by the machine's runner. If its job is known then, it belongs to the job and goes
// with it. Else it lies on a shelf: the job finds it by its runner, and Shelf removes those
// that no job asks for.
type Logs struct {
	// Client writes, and reads jobs, which its cache has indexed by demand.IndexRunnerName.
	Client client.Client
	// Live reads logs: a cache would hold all there are in memory. Default: Client.
	Live client.Reader
	// ForStore has package logstore bring each log to the object store.
	ForStore bool
}

// LogName is the name of the RunnerLog with the log of a runner's machine; see
// workload.RunnerName, which is unique.
func LogName(runner string) string {
	return strings.ReplaceAll(runner, ".-", "--") + "-log" // what was cut may end in a dot
}

// Keep keeps the log of a claim's machine. What is kept already stays as it is: a machine may
// repeat what it said, and says nothing new.
func (l *Logs) Keep(ctx context.Context, claim *v1alpha1.MachineClaim, text string) error {
	job, err := l.jobOf(ctx, claim)
	if err != nil {
		return err
	}

	kept := l.logOf(claim, text)

	if job == nil {
		kept.Labels[v1alpha1.LabelLogsOf] = labelValue(claim.Name)
		kept.Labels[v1alpha1.LabelLogShelf] = labelValue(keeper(claim))
	} else {
		kept.Labels[v1alpha1.LabelLogsOf] = labelValue(job.Name)
		kept.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "RunnerJob", Name: job.Name, UID: job.UID,
		}}
	}

	if err := l.Client.Create(ctx, kept); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("keep log %s: %w", client.ObjectKeyFromObject(kept), err)
	}

	return nil
}

// keeper is whose shelf a claim's log lies on: the pool's, or that of the template for a
// claim that no pool made.
func keeper(claim *v1alpha1.MachineClaim) string {
	if claim.Spec.RunnerPoolRef != nil {
		return claim.Spec.RunnerPoolRef.Name
	}

	return claim.Spec.TemplateRef.Name
}

// logOf is what is kept of a text that came from a claim's machine.
func (l *Logs) logOf(claim *v1alpha1.MachineClaim, text string) *v1alpha1.RunnerLog {
	end, cut := tail(text, guest.MaxLog)
	out := &v1alpha1.RunnerLog{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: claim.Namespace, Name: LogName(workload.RunnerName(claim.Name, claim.UID)), Labels: map[string]string{},
		},
		Spec: v1alpha1.RunnerLogSpec{Claim: claim.Name, Text: end, Cut: cut},
	}

	if l.ForStore {
		out.Labels[v1alpha1.LabelLogStore] = v1alpha1.LogStorePending
	}

	return out
}

// Find gives the name of the RunnerLog with the log of a runner's machine; empty if there is
// none.
func (l *Logs) Find(ctx context.Context, namespace, runner string) (string, error) {
	key := client.ObjectKey{Namespace: namespace, Name: LogName(runner)}

	found := &metav1.PartialObjectMetadata{}
	found.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("RunnerLog"))

	err := l.live().Get(ctx, key, found)

	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("look for log %s: %w", key, err)
	default:
		return key.Name, nil
	}
}

// Drop deletes the log of a job that is gone: one from the shelf has no owner to go with.
func (l *Logs) Drop(ctx context.Context, namespace, name string) error {
	err := l.Client.Delete(ctx, &v1alpha1.RunnerLog{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete log %s/%s: %w", namespace, name, err)
	}

	return nil
}

// jobOf finds the job of a claim's machine: the one that its runner took, or that it was
// made for; nil if none is known.
func (l *Logs) jobOf(ctx context.Context, claim *v1alpha1.MachineClaim) (*v1alpha1.RunnerJob, error) {
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

// labelValue makes a label's value of a name.
func labelValue(name string) string {
	return strings.TrimRight(name[:min(len(name), maxLabel)], "-_.")
}

func (l *Logs) live() client.Reader {
	if l.Live != nil {
		return l.Live
	}

	return l.Client
}

// tail gives the end of a text, at most so many bytes, from a line's beginning if there is
// one near, and whether anything was cut off.
func tail(text string, most int) (string, bool) {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= most {
		return text, false
	}

	text = text[len(text)-most:]
	for text != "" && !utf8.RuneStart(text[0]) {
		text = text[1:]
	}

	if _, rest, ok := strings.Cut(text, "\n"); ok && len(rest) > most/2 {
		return rest, true
	}

	return text, true
}
