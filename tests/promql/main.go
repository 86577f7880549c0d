// Evaluates PromQL over scrapes, with Prometheus' own parser, storage and query engine.
//
// Standard input holds one JSON document: scrapes (time in seconds, body in the text format), queries (expression and
// time of evaluation) and, optionally, the text of a rule file. Standard output gets one answer per query, and the faults
// of the rule file. The program ends with code 1 only where the input cannot be used at all.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb"
)

type scrape struct {
	Seconds int64             `json:"seconds"`
	Text    string            `json:"text"`
	Labels  map[string]string `json:"labels"`
}

type query struct {
	Expression string `json:"expression"`
	Seconds    int64  `json:"seconds"`
}

type job struct {
	Scrapes []scrape `json:"scrapes"`
	Queries []query  `json:"queries"`
	Rules   string   `json:"rules"`
}

type sample struct {
	Labels map[string]string `json:"labels"`
	Value  *float64          `json:"value"` // null for NaN and infinity, which JSON does not have
}

type answer struct {
	Error   string   `json:"error"`
	Samples []sample `json:"samples"`
}

type result struct {
	Answers    []answer `json:"answers"`
	RuleFaults []string `json:"ruleFaults"`
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	var asked job
	if err := json.NewDecoder(in).Decode(&asked); err != nil {
		return fmt.Errorf("the input is no job: %w", err)
	}
	folder, err := os.MkdirTemp("", "promql")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	options := tsdb.DefaultOptions()
	options.RetentionDuration = 0
	store, err := tsdb.Open(folder, nil, nil, options, nil)
	if err != nil {
		return err
	}
	defer store.Close()
	for _, one := range asked.Scrapes {
		if err := appendScrape(store, one); err != nil {
			return err
		}
	}
	return json.NewEncoder(out).Encode(result{Answers: answers(store, asked.Queries), RuleFaults: ruleFaults(asked.Rules)})
}

func appendScrape(store *tsdb.DB, one scrape) error {
	parser, err := textparse.New([]byte(one.Text), "text/plain; version=0.0.4", nil, textparse.ParserOptions{})
	if err != nil {
		return err
	}
	appender := store.Appender(context.Background())
	for {
		entry, err := parser.Next()
		if errors.Is(err, io.EOF) {
			return appender.Commit()
		}
		if err != nil {
			return fmt.Errorf("scrape of second %d: %w", one.Seconds, err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		_, _, value := parser.Series()
		var own labels.Labels
		parser.Labels(&own)
		if _, err := appender.Append(0, withTarget(own, one.Labels), one.Seconds*1000, value); err != nil {
			return err
		}
	}
}

// withTarget adds the labels that Prometheus gives every series of a target, such as job.
func withTarget(own labels.Labels, target map[string]string) labels.Labels {
	builder := labels.NewBuilder(own)
	for name, value := range target {
		builder.Set(name, value)
	}
	return builder.Labels()
}

func answers(store *tsdb.DB, queries []query) []answer {
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples:    10_000_000,
		Timeout:       time.Minute,
		LookbackDelta: 5 * time.Minute,
	})
	all := make([]answer, 0, len(queries))
	for _, one := range queries {
		all = append(all, evaluated(engine, store, one))
	}
	return all
}

func evaluated(engine *promql.Engine, store *tsdb.DB, one query) answer {
	ctx := context.Background()
	prepared, err := engine.NewInstantQuery(ctx, store, nil, one.Expression, time.Unix(one.Seconds, 0))
	if err != nil {
		return answer{Error: err.Error()}
	}
	defer prepared.Close()
	outcome := prepared.Exec(ctx)
	if outcome.Err != nil {
		return answer{Error: outcome.Err.Error()}
	}
	switch value := outcome.Value.(type) {
	case promql.Vector:
		return answer{Samples: samples(value)}
	case promql.Scalar:
		return answer{Samples: []sample{{Labels: map[string]string{}, Value: finite(value.V)}}}
	default:
		return answer{Error: fmt.Sprintf("the expression gives a %s, not a vector", value.Type())}
	}
}

func samples(vector promql.Vector) []sample {
	all := make([]sample, 0, len(vector))
	for _, one := range vector {
		all = append(all, sample{Labels: one.Metric.Map(), Value: finite(one.F)})
	}
	return all
}

func finite(value float64) *float64 {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return nil
	}
	return &value
}

func ruleFaults(text string) []string {
	faults := []string{}
	if text == "" {
		return faults
	}
	_, errs := rulefmt.Parse([]byte(text), false, model.UTF8Validation)
	for _, err := range errs {
		faults = append(faults, err.Error())
	}
	return faults
}
