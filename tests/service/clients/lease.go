// Work that outlasts its lease, and work whose claim is taken away; by `once` as the page has it.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"example.com/shop/semel"
)

func lease(ctx context.Context, c *semel.APIClient, key string) time.Time {
	record, _, err := c.RecordsAPI.GetRecord(ctx).Key(key).Execute()
	if err != nil {
		panic(err)
	}
	return record.LeaseUntil
}

func takeAway(ctx context.Context, key string) {
	operator := client()
	operator.GetConfig().AddDefaultHeader("Authorization", "Bearer "+os.Getenv("OPERATOR"))
	action := semel.NewActionRequest("release", "a test", key)
	action.SetForce(true)
	done, _, err := operator.OperatorsAPI.OpsAct(ctx).ActionRequest(*action).Execute()
	if err != nil {
		panic(err)
	}
	fmt.Println(done.After)
}

func main() {
	ctx, c := context.Background(), client()
	_, err := once(ctx, c, "long", nil, func(ctx context.Context) (any, error) {
		first := lease(ctx, c, "long")
		for lease(ctx, c, "long").Equal(first) {
			time.Sleep(50 * time.Millisecond)
		}
		fmt.Println("renewed")
		return nil, nil
	})
	if err != nil {
		panic(err)
	}
	_, err = once(ctx, c, "taken", nil, func(working context.Context) (any, error) {
		takeAway(ctx, "taken")
		<-working.Done()
		fmt.Println("lost")
		return nil, nil
	})
	fmt.Println(refusal(err))
}
