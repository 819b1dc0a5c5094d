package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// line is what the tier reads: one when a check begins, one when it has ended, one at the end of all.
type line struct {
	Event   string  `json:"event"`
	Check   string  `json:"check,omitempty"`
	State   string  `json:"state,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
	// Why it was skipped or failed, and the calls that it made before.
	Detail string `json:"detail,omitempty"`
}

type teller struct {
	variant string
	filter  string
	out     *json.Encoder
	calls   *calls
}

func (t teller) begin(spec ginkgo.SpecReport) {
	t.calls.forget()
	if t.chosen(spec) {
		t.tell(line{Event: "begin", Check: spec.FullText()})
	}
}

func (t teller) end(spec ginkgo.SpecReport) {
	if !t.chosen(spec) {
		return
	}
	t.tell(line{
		Event:   "end",
		Check:   spec.FullText(),
		State:   spec.State.String(),
		Seconds: spec.RunTime.Seconds(),
		Detail:  t.detail(spec),
	})
}

// chosen tells the checks that were asked for from those that ginkgo reports only to say that they
// were not.
func (t teller) chosen(spec ginkgo.SpecReport) bool {
	return strings.Contains(t.variant+" "+spec.FullText(), t.filter)
}

func (t teller) tell(l line) {
	if err := t.out.Encode(l); err != nil {
		panic(fmt.Sprintf("nobody reads the results: %v", err))
	}
}

func (t teller) detail(spec ginkgo.SpecReport) string {
	if !spec.Failed() {
		return spec.Failure.Message
	}
	var said []string
	for _, failure := range failures(spec) {
		at := failure.Location
		said = append(said, fmt.Sprintf("%s:%d: %s", filepath.Base(at.FileName), at.LineNumber, failure.Message))
		if failure.ForwardedPanic != "" {
			said = append(said, "panic: "+failure.ForwardedPanic)
		}
	}
	return strings.Join(append(said, t.calls.last(40)...), "\n")
}

func failures(spec ginkgo.SpecReport) []types.Failure {
	all := []types.Failure{spec.Failure}
	for _, more := range spec.AdditionalFailures {
		all = append(all, more.Failure)
	}
	return all
}

func quote(filter string) string {
	return regexp.QuoteMeta(filter)
}

// calls gives every call the deadline that csi-test does not give, and remembers how it ended.
type calls struct {
	deadline time.Duration
	mutex    sync.Mutex
	ended    []string
}

func (c *calls) intercept(ctx context.Context, method string, request, reply any, connection *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(ctx, c.deadline)
	defer cancel()
	begin := time.Now()
	err := invoke(ctx, method, request, reply, connection, options...)
	// Every check asks for them, some several times.
	if !strings.HasSuffix(method, "Capabilities") {
		c.remember(fmt.Sprintf("call %s: %s (%.2f s)", filepath.Base(method), ended(err), time.Since(begin).Seconds()))
	}
	return err
}

// call shows the status of a call in a line, where gomega would show what it is made of.
func call(value any) (string, bool) {
	err, ok := value.(error)
	if !ok {
		return "", false
	}
	if _, ok = status.FromError(err); !ok {
		return "", false
	}
	return ended(err), true
}

func ended(err error) string {
	if err == nil {
		return "OK"
	}
	return fmt.Sprintf("%s: %s", status.Code(err), status.Convert(err).Message())
}

func (c *calls) remember(call string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.ended = append(c.ended, call)
}

func (c *calls) forget() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.ended = nil
}

func (c *calls) last(count int) []string {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.ended[max(0, len(c.ended)-count):]
}
