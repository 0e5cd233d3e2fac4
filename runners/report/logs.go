// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

const (
	// shelfSlots bounds the logs of one pool whose jobs are not known.
	shelfSlots = 32
	// maxLogWrites bounds the tries of a write that others get in the way of.
	maxLogWrites = 5
	// maxName and maxLabel are Kubernetes' bounds.
	maxName  = 253
	maxLabel = 63
)

//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerlogs,verbs=get;create;update
//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerjobs,verbs=get;list;watch

// Logs keeps the ends of machines' logs: each in a RunnerLog that belongs to the job and
// goes with it. A log whose job is not known (yet) is put on the shelf of its pool: a
// bounded number of RunnerLogs that belong to the pool, in which a newer log may take the
// place of an older one.
type Logs struct {
	// Client writes, and reads jobs.
	Client client.Client
	// Live reads logs: a cache would hold all there are in memory. Default: Client.
	Live client.Reader
	// ForStore has package logstore bring each log to the object store.
	ForStore bool
}

// LogName is the name of the RunnerLog with the log of a RunnerJob.
func LogName(job string) string { return job[:min(len(job), maxName-len("-log"))] + "-log" }

// shelfName is where the log of a claim lies as long as its job is not known.
func shelfName(keeper, claim string) string {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(claim))

	return fmt.Sprintf("%s-log-%02d", keeper[:min(len(keeper), maxName-len("-log-00"))], sum.Sum32()%shelfSlots)
}

// Keep keeps the log of a claim's machine, with its job if that is known.
func (l *Logs) Keep(ctx context.Context, claim *v1alpha1.MachineClaim, text string) error {
	job, err := l.jobOf(ctx, claim)
	if err != nil {
		return err
	}

	if job != nil {
		return l.put(ctx, jobLog(job, l.fresh(claim.Name, text))) // Adopt notes it in the job's status
	}

	shelved := logOf(claim.Namespace, shelfName(keeper(claim), claim.Name), claim.Name, l.fresh(claim.Name, text))

	if owner := metav1.GetControllerOf(claim); owner != nil {
		shelved.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID,
		}}
	}

	return l.put(ctx, shelved)
}

// keeper is whose shelf a claim's log lies on: the pool's, or that of the template for a
// claim that no pool made.
func keeper(claim *v1alpha1.MachineClaim) string {
	if claim.Spec.RunnerPoolRef != nil {
		return claim.Spec.RunnerPoolRef.Name
	}

	return claim.Spec.TemplateRef.Name
}

// kept is a log and whether it is on its way to the store.
type kept struct {
	spec  v1alpha1.RunnerLogSpec
	store string
}

// fresh is what is kept of a text that came from a machine.
func (l *Logs) fresh(claim, text string) kept {
	end, cut := tail(text, guest.MaxLog)
	out := kept{spec: v1alpha1.RunnerLogSpec{Claim: claim, Text: end, Cut: cut}}

	if l.ForStore {
		out.store = v1alpha1.LogStorePending
	}

	return out
}

func jobLog(job *v1alpha1.RunnerJob, what kept) *v1alpha1.RunnerLog {
	out := logOf(job.Namespace, LogName(job.Name), job.Name, what)
	out.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "RunnerJob", Name: job.Name, UID: job.UID,
	}}

	return out
}

// Adopt finds the log of a machine, and gives the name of the RunnerLog; empty if there is no
// log. Where the job was not known when the log came, it is taken from the shelf of the
// machine's pool; that is the job's where the machine's own is not known.
func (l *Logs) Adopt(ctx context.Context, job *v1alpha1.RunnerJob, pool, claim string) (string, error) {
	own, err := l.of(ctx, client.ObjectKey{Namespace: job.Namespace, Name: LogName(job.Name)}, claim)
	if err != nil {
		return "", err
	}

	if own != nil {
		return LogName(job.Name), nil
	}

	shelved, err := l.of(ctx, client.ObjectKey{Namespace: job.Namespace, Name: shelfName(pool, claim)}, claim)
	if err != nil || shelved == nil {
		return "", err
	}

	if err := l.put(ctx, jobLog(job, kept{spec: shelved.Spec, store: shelved.Labels[v1alpha1.LabelLogStore]})); err != nil {
		return "", err
	}

	return LogName(job.Name), nil
}

// of reads a log; nil where there is none of that name, or one of another claim.
func (l *Logs) of(ctx context.Context, key client.ObjectKey, claim string) (*v1alpha1.RunnerLog, error) {
	var found v1alpha1.RunnerLog

	err := l.live().Get(ctx, key, &found)

	switch {
	case apierrors.IsNotFound(err), err == nil && found.Spec.Claim != claim:
		return nil, nil //nolint:nilnil // no log is no error
	case err != nil:
		return nil, fmt.Errorf("read log %s: %w", key, err)
	}

	return &found, nil
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

	var jobs v1alpha1.RunnerJobList
	if err := l.Client.List(ctx, &jobs, client.InNamespace(claim.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}

	for i := range jobs.Items {
		if info.RunnerName != "" && jobs.Items[i].Spec.RunnerName == info.RunnerName {
			return jobs.Items[i].DeepCopy(), nil
		}
	}

	return nil, nil //nolint:nilnil // no job is no error
}

func logOf(namespace, name, of string, what kept) *v1alpha1.RunnerLog {
	out := &v1alpha1.RunnerLog{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{v1alpha1.LabelLogsOf: labelValue(of)},
		},
		Spec: what.spec,
	}
	if what.store != "" {
		out.Labels[v1alpha1.LabelLogStore] = what.store
	}

	return out
}

// labelValue makes a label's value of a name.
func labelValue(name string) string {
	return strings.TrimRight(name[:min(len(name), maxLabel)], "-_.")
}

// put writes a log over what was there.
func (l *Logs) put(ctx context.Context, wanted *v1alpha1.RunnerLog) error {
	key := client.ObjectKeyFromObject(wanted)

	for try := 1; ; try++ {
		err := l.try(ctx, key, wanted)

		again := apierrors.IsConflict(err) || apierrors.IsNotFound(err)
		if err == nil || !again || try == maxLogWrites || ctx.Err() != nil {
			if err != nil {
				return fmt.Errorf("keep log %s: %w", key, err)
			}

			return nil
		}
	}
}

func (l *Logs) try(ctx context.Context, key client.ObjectKey, wanted *v1alpha1.RunnerLog) error {
	err := l.Client.Create(ctx, wanted.DeepCopy())
	if !apierrors.IsAlreadyExists(err) {
		return err
	}

	var there v1alpha1.RunnerLog
	if err := l.live().Get(ctx, key, &there); err != nil {
		return err
	}

	there.Labels, there.OwnerReferences, there.Spec = wanted.Labels, wanted.OwnerReferences, wanted.Spec

	return l.Client.Update(ctx, &there)
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
